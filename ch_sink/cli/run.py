"""``ch_sink run``: the streams of files in one Spark application; ``pause`` and ``resume`` of them."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ch_sink.cli.options import (
    AsJson,
    ConfigFiles,
    Only,
    Overrides,
    expect_some,
    load_all,
    load_jobs,
    streams_again,
    watch_topics,
)
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.model.counts import counted
from ch_sink.serve.listener import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ch_sink.config import Config
    from ch_sink.observe.job_view import Live
    from ch_sink.observe.stream import StreamSummary
    from ch_sink.spark.job import JobEnd
    from ch_sink.spark.session import JvmStart
    from ch_sink.wiring.process import Stop


log = logging.getLogger("ch_sink")


_NAMED = 5
"""Streams that an error names."""


class LogFormat(StrEnum):
    """Format of log lines."""

    text = "text"
    json = "json"


LogFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also append the log to this file.", show_default=False)
]
UiAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve the job's page at this address.", show_default=False)
]
UiToken = Annotated[
    str,
    typer.Option(
        envvar="CH_SINK_UI_TOKEN",
        metavar="TOKEN",
        help="Token that the page asks for to show and retry records; generated if omitted.",
        show_default=False,
    ),
]
UiHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Another host name of the page, such as a proxy's. May be repeated.", show_default=False
    ),
]


def run(
    context: typer.Context,
    configs: ConfigFiles,
    once: Annotated[
        bool, typer.Option("--once", help="Apply everything that is in the topics now, then stop.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark master; by default local[*], this machine.", show_default=False),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop the job when its first stream fails.")] = False,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each batch of each stream.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and errors only.")] = False,
    log_file: LogFile = None,
    log_format: Annotated[LogFormat, typer.Option(help="Format of log lines.")] = LogFormat.text,
    ui: UiAddress = None,
    ui_token: UiToken = "",
    ui_host: UiHosts = None,
) -> None:
    """Apply changes from Kafka to ClickHouse until stopped.

    Ctrl-C or SIGTERM stops the job after the running batches; the next run continues where this one stopped.
    Unavailable servers are retried for up to retry_for. If a stream fails, the others continue, and the job waits for
    `ch_sink resume`; with --once it ends with exit code 1.
    """
    if verbose and quiet:
        raise ConfigError("--verbose and --quiet exclude each other", hint="Use one of them.")
    from ch_sink.cli.screen import LogOptions, shown
    from ch_sink.observe.job_view import JobWatch, Live

    out, stop = Output(as_json=as_json), context.obj
    watch = JobWatch("reading the configuration")
    debug = bool(context.find_root().params.get("debug"))
    with shown(watch.look, LogOptions(verbose, quiet or as_json, log_file, log_format.value, debug), stop):
        jobs = load_jobs(configs, overrides)
        with ExitStack() as beside:
            jvm = beside.enter_context(_starting([job.usual for job in jobs], master, stop))
            topics = watch_topics(jobs, lambda: load_jobs(configs, overrides), only)
            settings = topics.first(log, wait=not once)
            expect_some(topics, settings, only)
            live = Live()
            beside.enter_context(_page(ui, ui_token, ui_host or (), live, lambda: streams_again(configs, overrides)))
            if not once:
                beside.enter_context(_purging(live, lambda: streams_again(configs, overrides)))
            # PySpark is imported when it is needed: missing things are reported while Spark's JVM is still starting.
            from ch_sink.spark.job import run_job
            from ch_sink.wiring.crew import Observers

            end = run_job(
                settings,
                once=once,
                fail_fast=fail_fast,
                master=master,
                topics=topics,
                started=jvm,
                stop=stop,
                seen=Observers(logged, watch, live),
            )
    _report(out, end, len(settings), stopped=stop.requested)


@contextmanager
def _starting(settings: "Sequence[Config]", master: str | None, stop: "Stop") -> "Iterator[JvmStart | None]":
    """Spark's JVM, which starts beside everything else. It ends at once if no session has been made."""
    from ch_sink.spark.session import properties_of, start_jvm

    jvm = start_jvm("ch_sink", master or settings[0].spark.master, properties_of(settings), stop)
    try:
        yield jvm
    finally:
        if jvm is not None:
            jvm.jvm.abandon()


def _report(out: Output, end: "JobEnd", streams: int, *, stopped: bool) -> None:
    """Show what the job did. Raises what stopped its streams."""
    opened = [summary for summary in end.summaries if summary.opened]
    if opened and (stopped or any(summary.stream not in end.failures for summary in opened)):
        show_summaries(out, opened)
        out.document([s.as_json() for s in opened])
    several = max(streams, len(end.summaries))
    if len(end.failures) > 1:
        raise stopped_streams(end.failures, several)
    if several > 1:
        for stream, error in end.failures.items():
            raise error.about(stream)
    end.expect_fine()


@contextmanager
def _page(
    address: str | None,
    token: str,
    hosts: "Sequence[str]",
    live: "Live",
    streams: "Callable[[], Sequence[Config]]",
) -> Iterator[None]:
    """Serve the page, if it has an address. Raises ConfigError."""
    if address is None:
        yield
        return
    from ch_sink.cli.page import JobPage
    from ch_sink.observe.logs import FOR_THE_TERMINAL
    from ch_sink.serve.page import PageServer

    server = PageServer(Address.parse(address, "--ui"), JobPage(live, streams), token, hosts)
    log.info("the page is at http://%s:%d/", address.rpartition(":")[0] or "127.0.0.1", server.port)
    if not token and sys.stderr.isatty():
        log.info("token to see and retry records: %s", server.token, extra=FOR_THE_TERMINAL)
    elif not token:
        log.info("the page neither shows nor retries records: set CH_SINK_UI_TOKEN to allow it")
    try:
        yield
    finally:
        server.close()


@contextmanager
def _purging(live: "Live", streams: "Callable[[], Sequence[Config]]") -> Iterator[None]:
    """Let deleted rows leave the disk while the job runs, where ``purge_after`` says when."""
    from ch_sink.trust.purge import Purging

    def running() -> set[str]:
        return {s.stream for s in live.snapshot() if s.standing.state == "running" and not s.standing.error}

    purging = Purging(streams, running)
    purging.start()
    try:
        yield
    finally:
        purging.close()


def stopped_streams(failures: "Mapping[str, ChSinkError]", of: int) -> ChSinkError:
    """The error that ends the command. The log already has the error of each stream."""
    names = [*failures][:_NAMED]
    more = f" and {counted(len(failures) - len(names), 'other')}" if len(failures) > len(names) else ""
    steps = {failure.hint for failure in failures.values()}
    error = ChSinkError(
        f"{len(failures)} of {counted(of, 'stream')} stopped: {', '.join(names)}{more}",
        hint=(steps.pop() if len(steps) == 1 else None)
        or "`ch_sink status` shows why; fix it, then run `ch_sink resume`.",
    )
    error.exit_code = max(failure.exit_code for failure in failures.values())
    return error


def logged(summary: "StreamSummary") -> None:
    """Log what a batch came to."""
    from ch_sink.observe.stream import progress_line

    log.debug("%s", progress_line(summary), extra={"stream": summary.stream})


def progress(out: Output) -> "Callable[[StreamSummary], None]":
    """Show each stream's line after its batches; on a terminal, one line that is rewritten."""
    from ch_sink.observe.stream import progress_line

    def show(summary: "StreamSummary") -> None:
        out.progress(progress_line(summary))

    return show


def show_summaries(out: Output, summaries: "list[StreamSummary]") -> None:
    """A table with one line per stream, and a warning for each that wrote dead letters."""
    from ch_sink.model.counts import grouped

    columns: dict[str, Callable[[StreamSummary], object]] = {
        "table": lambda s: s.table,
        "batches": lambda s: s.batches,
        "records": lambda s: s.counts.records,
        "rows": lambda s: s.counts.rows,
        "deletes": lambda s: s.counts.deletes,
        "deduplicated": lambda s: s.counts.deduplicated,
        "skipped": lambda s: sum(s.counts.skipped.values()),
        "waiting": lambda s: s.waiting,
        "dead letters": lambda s: s.counts.dead_letters,
        "lag": lambda s: s.lag,
    }
    out.table([*columns], [[figure(s) for figure in columns.values()] for s in summaries])
    for s in summaries:
        if s.counts.dead_letters:
            number = counted(s.counts.dead_letters, "record")
            out.warn(
                f"{s.table}: {number} of {grouped(s.counts.records)} became dead letters; `ch_sink check` says why"
            )
        if s.counts.out_of_range:
            out.warn(f"{s.table}: {counted(s.counts.out_of_range, 'value')} out of range, stored as out_of_range says")


def pause(configs: ConfigFiles, only: Only = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Pause streams: the running batch ends, and no other begins, not even after a restart.

    Works from any host, whether or not a job runs. `ch_sink resume` ends the pause.
    """
    _ask("pause", configs, only, overrides, Output(as_json=as_json))


def resume(configs: ConfigFiles, only: Only = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Resume streams that are paused or stopped, and let waiting ones try again at once.

    Works from any host. If no job runs, the streams continue when the next one starts.
    """
    _ask("resume", configs, only, overrides, Output(as_json=as_json))


def _ask(
    wanted: Literal["pause", "resume"],
    files: list[Path],
    only: str | None,
    overrides: list[str] | None,
    out: Output,
) -> None:
    from ch_sink.discovery.wiring import states_by_ledger
    from ch_sink.ports import Request
    from ch_sink.stream.standing import person, seen_from_outside

    configs = load_all(out, files, overrides, only, recorded=True)
    request = Request(wanted, person(), time.time())
    done: list[dict[str, str]] = []
    # A ledger that is missing fails before another one's streams are asked.
    for states, streams in sorted(states_by_ledger(configs), key=lambda found: found[0].mark() is not None):
        before = states.read([c.stream_name for c in streams])
        states.ask({c.stream_name: request for c in streams})
        done += [
            {
                "stream": c.stream_name,
                "topic": c.kafka.topic,
                "requested": wanted,
                "before": seen_from_outside(before[c.stream_name]).state,
            }
            for c in streams
        ]
    for entry in done:
        out.say(f"{entry['stream']}: {wanted} requested, was {entry['before']}")
    out.document({"streams": done})
