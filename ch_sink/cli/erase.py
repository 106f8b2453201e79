"""``ch_sink erase``: one key's rows leave every table of the sink."""

from pathlib import Path
from typing import Annotated

import typer

from ch_sink.cli.options import AsJson, KeyJson, Only, Overrides, expecting_a_ledger, key_of, load_all, one_stream
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError

__all__ = ["erase"]


def erase(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    key: KeyJson,
    apply: Annotated[bool, typer.Option("--apply", help="Remove; without it, only count the rows.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Also a row that is not deleted in the source.")] = False,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Remove one key from the disk: its rows of all versions, dead letters, waiting changes and hand-over rows.

    Says what remains, and what would bring the row back.
    """
    from ch_sink.trust.erase import erased
    from ch_sink.trust.own_tables import own_tables
    from ch_sink.trust.wiring import subject_of

    out = Output(as_json=as_json)
    given = key_of(key)
    [chosen] = one_stream(load_all(out, [config], overrides, only), config)
    if live and chosen.rollups:
        raise ConfigError(
            "--live removes a row whose values its rollups keep",
            hint="Delete the row in the source, and erase the key once the stream has applied that.",
        )
    with expecting_a_ledger(chosen):
        subject = subject_of(chosen)
        own = own_tables(chosen, subject.client)
        done = erased(
            subject,
            own,
            given,
            apply=apply,
            live=live,
            say=lambda text: out.progress(text) if out.interactive else None,
        )
    out.progress_done()
    out.table(("table", "removed" if apply else "rows"), list(done.rows.items()))
    for line in done.remains:
        out.say(line)
    if not apply and any(done.rows.values()):
        out.say("nothing was removed: --apply")
    out.document(done.as_json())
