"""The main job: ``spark-submit job.py --config orders.yaml [--config …] [--once]``, and what ``ch_sink run`` calls."""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ch_sink.config import Config, load
from ch_sink.errors import ChSinkError, StreamsFailed
from ch_sink.observe import StreamSummary, progress_line
from ch_sink.spark.descriptors import allow_descriptors, start_callback_server
from ch_sink.spark.executor import SparkExecutor
from ch_sink.spark.query import StreamQuery
from ch_sink.spark.session import JvmStart, build_application
from ch_sink.spark.source import SourceFailure
from ch_sink.spark.stop import Stop, run_stoppable
from ch_sink.spark.wiring import SharedTopics, stream_ports, stream_settings
from ch_sink.stream.coordinator import Coordinator

__all__ = ["main", "run_streams"]

_FINISH = 60.0
"""Longest wait for the running batches of the other streams after one has failed, in seconds."""
_LAST_BATCH = 10.0
"""Longest wait for running batches after a signal; then they are abandoned, and the next run repeats them."""
_LOOK = 0.3
"""Seconds between two looks at whether a stop is requested."""


def run_streams(
    configs: Sequence[Config],
    *,
    once: bool = False,
    master: str | None = None,
    on_batch: Callable[[StreamSummary], None] | None = None,
    started: JvmStart | None = None,
    stop: Stop | None = None,
) -> list[StreamSummary]:
    """Run the streams of these configurations in one Spark application; returns when all have ended.

    Args:
        once: end when everything that is there now has been read.
        on_batch: receives each stream's figures after each of its micro-batches.
        started: the JVM, if it has been started for these configurations.
        stop: once requested, running batches come to their end and no further one begins.

    Raises:
        ChSinkError: a stream failed. The others finish their running batch first, and if they fail as well, the error
            names all of them.
    """
    allow_descriptors(len(configs))
    stop = stop or Stop()
    session = build_application(configs, master, started=started, stop=stop)
    start_callback_server(session)
    executor = SparkExecutor(session, {config.stream_name: config.to_task_json() for config in configs})
    streams: list[StreamQuery] = []
    with ExitStack() as closing:
        folder = Path(closing.enter_context(TemporaryDirectory(prefix="ch_sink-")))
        topics = SharedTopics()
        closing.callback(topics.close)
        for number, config in enumerate(configs):
            stop.check()
            coordinator = Coordinator(stream_settings(config), stream_ports(config, topics), on_batch)
            closing.callback(coordinator.close)
            coordinator.open()
            coordinator.run_release(executor)
            streams.append(
                StreamQuery(config, session, coordinator, executor, SourceFailure(folder / f"{number}.failure"))
            )
        topics.close()
        closing.callback(_stop, streams)
        begun: list[StreamQuery] = []
        for stream in streams:
            if stop.requested:
                break
            stream.start(once)
            begun.append(stream)
            stream.wait_until_initialized()
        _await(begun, stop)
    return [stream.coordinator.summary for stream in streams]


def _stop(streams: Sequence[StreamQuery]) -> None:
    for stream in streams:
        stream.stop()


def _await(streams: Sequence[StreamQuery], stop: Stop) -> None:
    """Wait until every query has ended or a stop is requested. Raises the errors of those that failed."""
    while active := [stream for stream in streams if stream.is_active()]:
        if stop.requested or any(stream.failure is not None for stream in streams):
            break
        active[0].wait(_LOOK)
    _finish(streams, _LAST_BATCH if stop.requested else _FINISH)
    failed = {s.config.stream_name: s.failure for s in streams if s.failure is not None}
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        raise StreamsFailed(failed)


def _finish(streams: Sequence[StreamQuery], seconds: float) -> None:
    """Let running batches come to their end, for so long; no further one begins."""
    for stream in streams:
        stream.stopping = True
    deadline = time.monotonic() + seconds
    while any(stream.busy for stream in streams) and time.monotonic() < deadline:
        time.sleep(0.05)
    for stream in streams:
        stream.is_active()  # notes what ended it


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry of ``spark-submit``; returns the exit code.

    0 done, 1 a stream failed, 2 wrong usage or configuration, 130 and 143 stopped by Ctrl-C or SIGTERM.
    """
    return run_stoppable(lambda stop: _main(arguments, stop), exiting=arguments is None)


def _main(arguments: Sequence[str] | None, stop: Stop) -> int:
    parser = argparse.ArgumentParser(prog="job.py", description="Debezium change events from Kafka into ClickHouse")
    parser.add_argument("--config", action="append", required=True, metavar="FILE", help="one YAML file per topic")
    parser.add_argument("--once", action="store_true", help="stop when everything that is there now has been read")
    parser.add_argument("--master", metavar="URL", help="Spark master, where spark-submit does not say it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    # What these log follows as an error of this product, with the next step.
    for noisy in ("urllib3.connectionpool", "clickhouse_connect", "py4j"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        configs = [load(path, given.overrides) for path in given.config]
        for summary in run_streams(configs, once=given.once, master=given.master, on_batch=_print, stop=stop):
            if stop.requested:
                _print(summary)
    except ChSinkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"next: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


def _print(summary: StreamSummary) -> None:
    sys.stdout.write(progress_line(summary) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
