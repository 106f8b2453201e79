"""``ch_sink rehearse``: what the table would be under another configuration."""

from pathlib import Path
from typing import Annotated

import typer

from ch_sink.cli.comparing import Columns, Examples, Where
from ch_sink.cli.options import AsJson, Only, Overrides, expecting_a_ledger, load_all, one_stream
from ch_sink.cli.output import Output

__all__ = ["rehearse"]


def rehearse(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    other: Annotated[Path, typer.Option("--config", metavar="OTHER", help="The YAML file to try.", show_default=False)],
    examples: Examples = 10,
    where: Where = "",
    columns: Columns = "",
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read the topic under another configuration and compare the result with the table; exit code 1 if it differs.

    Tries another engine, other columns, masks or policies. The table, the ledger and the stream are not touched.
    """
    from ch_sink.trust.rehearse import other_of, rehearsed
    from ch_sink.trust.report import lines
    from ch_sink.trust.wiring import subject_of

    out = Output(as_json=as_json)
    [chosen] = one_stream(load_all(out, [config], overrides, only), config)
    [tried] = one_stream(load_all(out, [other], None, only), other)
    with expecting_a_ledger(chosen):
        live = subject_of(chosen, context.obj.check)
        done = rehearsed(
            live,
            other_of(tried, live),
            columns=tuple(name.strip() for name in columns.split(",") if name.strip()),
            condition=where,
            examples=examples,
            say=lambda text: out.progress(text) if out.interactive else None,
        )
    out.progress_done()
    if done.engine[0] != done.engine[1]:
        out.say(f"engine: {done.engine[0]} instead of {done.engine[1]}")
    for said, names in (("would have", done.only_other), ("would lack", done.only_live)):
        if names:
            out.say(f"{said} the columns {', '.join(names)}")
    for clause, (new, now) in done.layout.items():
        out.say(f"{clause} ({new}) instead of ({now})")
    for name, (new, now) in done.types.items():
        out.say(f"column {name} would be {new} instead of {now}; it is not compared")
    for line in lines(done.report):
        out.say(line)
    out.document(done.as_json())
    if not done.equal:
        raise typer.Exit(1)
