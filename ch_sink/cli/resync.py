"""``ch_sink resync`` and ``ch_sink bootstrap``: tables filled from their source."""

from collections.abc import Callable
from typing import Annotated

import typer

from ch_sink.cli.comparing import truth_of
from ch_sink.cli.each_stream import EachStream
from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output

__all__ = ["bootstrap", "resync"]

Apply = Annotated[bool, typer.Option("--apply", help="Do it; without it, only say what would be done.")]
Patience = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", min=0, help="How long to wait for changes that are still under way."),
]
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic",
        help="What holds the truth: the database of the section source, or the topic, if it holds its first records.",
        show_default="source if the file names it, else topic",
    ),
]


def resync(
    context: typer.Context,
    configs: ConfigFiles,
    against: Against = "",
    apply: Apply = False,
    patience: Patience = 30.0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fill each table anew from its source while the stream and its readers go on; rows whose deletes were lost go.

    A new table is filled beside the old one and takes its place in one step. Without --apply nothing is written.
    """
    from ch_sink.model.counted import counted
    from ch_sink.trust.refill_wiring import refill_of
    from ch_sink.trust.resync import resynced

    out = Output(as_json=as_json)
    documents = []
    each = EachStream(out, load_all(out, configs, overrides, only))
    for config in each.streams:
        chosen = truth_of(config, against)
        with each.guard(config):
            refill = refill_of(config, patience, context.obj.check)
            done = resynced(refill, apply=apply, against=chosen, say=_say(out))
            documents.append(done.as_json())
            if apply:
                out.say(
                    f"{done.table}: {counted(done.rows, 'row')}, before {done.before}; "
                    f"the stream paused for {done.paused:.1f} seconds"
                )
            else:
                what = counted(done.rows, "row" if chosen == "source" else "offset")
                out.say(f"{done.table}: would be filled anew from {what} of the {chosen}, has {done.before}: --apply")
    out.document({"streams": [*documents, *each.documents()]})
    each.expect_all()


def bootstrap(
    context: typer.Context,
    configs: ConfigFiles,
    apply: Apply = False,
    patience: Patience = 30.0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fill each empty table from its source, so that the connector needs no snapshot; then the stream goes on.

    The source stays as it is, with its writers. Without --apply nothing is written.
    """
    from ch_sink.model.counted import counted
    from ch_sink.trust.bootstrap import bootstrapped
    from ch_sink.trust.refill_wiring import refill_of

    out = Output(as_json=as_json)
    documents = []
    each = EachStream(out, load_all(out, configs, overrides, only))
    for config in each.streams:
        with each.guard(config):
            done = bootstrapped(refill_of(config, patience, context.obj.check), apply=apply, say=_say(out))
            documents.append(done.as_json())
            if done.applied:
                places = ", ".join(f"{offset} of partition {p}" for p, offset in sorted(done.start.items()))
                out.say(f"{done.table}: {counted(done.rows, 'row')}; the stream goes on at offset {places}")
            else:
                out.say(f"{done.table}: would be filled with {counted(done.rows, 'row')} of the source: --apply")
    out.document({"streams": [*documents, *each.documents()]})
    each.expect_all()


def _say(out: Output) -> Callable[[str], None]:
    return out.note
