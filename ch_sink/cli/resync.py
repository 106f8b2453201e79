"""``ch_sink resync``: tables filled from their source or their topic."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.comparing import EachStream, Patience, truth_of
from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all, one_stream
from ch_sink.cli.output import Output
from ch_sink.model.counts import counted, grouped
from ch_sink.observe.step import Step

if TYPE_CHECKING:
    from ch_sink.trust.resync import Resynced

Apply = Annotated[bool, typer.Option("--apply", help="Fill the table; without it, only show what would be done.")]
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic",
        help="Where the rows come from: the database in the section source, which is the default if the file has one, "
        "or the topic.",
        show_default=False,
    ),
]
Into = Annotated[
    str,
    typer.Option(
        "--into",
        metavar="TABLE",
        help="Fill this empty table instead, and leave the stream's table as it is.",
        show_default=False,
    ),
]


def resync(
    context: typer.Context,
    configs: ConfigFiles,
    against: Against = "",
    into: Into = "",
    apply: Apply = False,
    patience: Patience = 30.0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fill tables from the source or the topic, and swap them in, while the stream and readers continue.

    Nothing is written without --apply. A new table is filled beside the old one and takes its place in one step. Its
    engine, columns, order_by, partition_by and ttl are those of the file, so resync can also give a table another
    shape. Before the first run, it can load the rows that the source already has, in place of a connector's snapshot.
    """
    from ch_sink.trust.resync import resynced
    from ch_sink.trust.wiring import refill_of

    out = Output(as_json=as_json)
    documents: list[dict[str, Any]] = []
    streams = load_all(out, configs, overrides, only)
    if into:
        streams = one_stream(streams, configs[0])
    each = EachStream(out, streams)
    with out.documenting(context.obj, lambda: {"streams": [*documents, *each.documents()]}):
        for config in each.streams:
            chosen = truth_of(config, against)
            with each.guard(config):
                refill = refill_of(config, patience, context.obj.check)
                done = resynced(
                    refill,
                    apply=apply,
                    against=chosen,
                    into=into,
                    say=lambda text: out.doing(text) if isinstance(text, Step) else out.note(text),
                )
                documents.append(done.as_json())
                for line in _planned(done, chosen) if not apply else _done(done, into):
                    out.say(line)
    each.expect_all()
    if any(one["lacking"] for one in documents):
        raise typer.Exit(1)


def _planned(done: "Resynced", against: str) -> Iterator[str]:
    what = counted(done.rows, "row" if against == "source" else "offset")
    has = counted(done.before, "row")
    yield f"{done.table}: has {has}, would be filled from {what} of the {against}; add --apply to do it"
    if done.size:
        yield f"needs room for a second table; the present one takes {done.size / 2**20:,.1f} MiB"
    yield from (f"  {change}" for change in done.shape)


def _done(done: "Resynced", into: str) -> Iterator[str]:
    if into:
        yield f"{done.table}: {counted(done.rows, 'row')}"
    elif done.start:
        places = ", ".join(f"{offset} of partition {p}" for p, offset in sorted(done.start.items()))
        yield f"{done.table}: {counted(done.rows, 'row')}; the stream continues at offset {places}"
    else:
        yield (
            f"{done.table}: {counted(done.rows, 'row')}, {grouped(done.before)} before; "
            f"the stream paused for {done.paused:.1f} seconds"
        )
    yield from (f"  {change}" for change in done.shape)
