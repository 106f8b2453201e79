"""``ch_sink explain``: the biography of one row."""

from pathlib import Path
from typing import Annotated

import typer

from ch_sink.cli.options import AsJson, KeyJson, Only, Overrides, expecting_a_ledger, key_of, load_all, one_stream
from ch_sink.cli.output import Output

__all__ = ["explain"]


def explain(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    key: KeyJson,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show every event of the topic for one key, the rule that decided about it, and what is stored."""
    from ch_sink.trust.explain import explained

    out = Output(as_json=as_json)
    given = key_of(key)
    [chosen] = one_stream(load_all(out, [config], overrides, only), config)
    with expecting_a_ledger(chosen):
        found = explained(chosen, given, context.obj.check)
    columns = ("partition", "offset", "op", "position", "epoch", "rule", "why")
    out.table(columns, [(e.partition, e.offset, e.op, e.position, e.epoch, e.rule, e.why) for e in found.events])
    if not found.events:
        out.say("the topic holds no event of this key")
    for row in found.stored:
        out.say("stored: " + ", ".join(f"{name}={value}" for name, value in row.items()))
    out.document(found.as_json())
