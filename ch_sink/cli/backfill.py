"""``ch_sink backfill``: the snapshot that a topic begins with, in bulk."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.each_stream import EachStream
from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.cli.resync import Apply
from ch_sink.model.counted import counted, grouped

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.spark.stop import Stop
    from ch_sink.stream.bulk import Load

__all__ = ["backfill", "bar"]

_WIDTH = 24


def backfill(
    context: typer.Context,
    configs: ConfigFiles,
    apply: Apply = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark master; local[*] if none is configured.", show_default=False),
    ] = None,
    wave: Annotated[
        int, typer.Option(metavar="OFFSETS", min=1, help="What is read, shuffled and stored at a time.")
    ] = 4_000_000,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Load the connector's snapshot from the topic into the empty table in large blocks; then the stream goes on.

    Readers see nothing of it until all is there. A run that is broken off is begun again, and goes on where it was.
    Without --apply nothing is written.
    """
    from ch_sink.trust.backfill import backfilled
    from ch_sink.trust.refill_wiring import refill_of

    out = Output(as_json=as_json)
    documents = []
    each = EachStream(out, load_all(out, configs, overrides, only))
    for config in each.streams:
        with each.guard(config):
            refill = refill_of(config, 0)
            with _spark(config, master, context.obj) as load:
                done = backfilled(
                    refill, load, apply=apply, wave=wave, say=out.note, progress=_progress(out, context.obj)
                )
            out.progress_done()
            documents.append(done.as_json())
            places = ", ".join(f"{offset} of partition {p}" for p, offset in sorted(done.start.items()))
            if done.applied:
                out.say(f"{done.table}: {counted(done.rows, 'row')}; the stream goes on at offset {places}")
                if done.dead_letters:
                    out.warn(f"{counted(done.dead_letters, 'record')} became dead letters; `ch_sink check` says why")
            else:
                out.say(f"{done.table}: {counted(done.rows, 'offset')} of a snapshot, which ends at {places}: --apply")
    out.document({"streams": [*documents, *each.documents()]})
    each.expect_all()


@contextmanager
def _spark(config: "Config", master: str | None, stop: "Stop") -> "Iterator[Callable[[], Load]]":
    """Starts Spark once it is needed."""
    from ch_sink.spark.session import build_application, start_application

    jvms = []

    def load() -> "Load":
        started = start_application([config], master, stop)
        if started is not None:
            jvms.append(started.jvm)
        session = build_application([config], master, started=started, stop=stop)
        from ch_sink.spark.bulk import SparkLoad

        return SparkLoad(session, config.to_task_json())

    try:
        yield load
    finally:
        for jvm in jvms:
            jvm.abandon()


def _progress(out: Output, stop: "Stop") -> Callable[[int, int], None]:
    from ch_sink.spark.stop import Stopped

    began: list[tuple[float, int]] = []

    def show(done: int, of: int) -> None:
        began.append((time.monotonic(), done))
        first, skipped = began[0]
        if stop.requested and done < of:
            raise Stopped
        out.progress(bar(done, of, time.monotonic() - first, done - skipped))

    return show


def bar(done: int, of: int, seconds: float = 0.0, since: int = 0) -> str:
    """A progress bar. ``since``: how much of it was done within ``seconds``."""
    full = _WIDTH * done // max(of, 1)
    text = (
        f"[{'#' * full}{'.' * (_WIDTH - full)}] {100 * done // max(of, 1)} %  {grouped(done)} of {grouped(of)} records"
    )
    if since and seconds and done < of:
        left = seconds * (of - done) / since
        text += f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"
    return text
