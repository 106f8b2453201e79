"""The main job: ``spark-submit job.py --config orders.yaml [--config …] [--once]``, and what ``ch_sink run`` calls."""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from ch_sink.config import Config, load
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.observe import StreamSummary, progress_line
from ch_sink.spark.driver import StreamDriver
from ch_sink.spark.session import build_session
from ch_sink.spark.source import source_error

__all__ = ["main", "run_streams"]

_NO_WORKER = "Python worker failed to connect back"
_STARTS = 4
_INITIALIZING = 30.0
"""Longest wait for one query before the next is started, in seconds."""


def run_streams(
    configs: Sequence[Config],
    *,
    once: bool = False,
    master: str | None = None,
    on_batch: Callable[[StreamSummary], None] | None = None,
) -> list[StreamSummary]:
    """Run the streams of these configurations in one Spark application; returns when all have ended.

    Args:
        once: end when everything that is there now has been read.
        on_batch: told of each stream's figures after each of its micro-batches.

    Raises:
        ChSinkError: the first stream that failed; the others are stopped.
    """
    first = configs[0]
    session = build_session("ch_sink", master or first.spark.master, _properties(configs))
    drivers: list[StreamDriver] = []
    queries: list[StreamingQuery] = []
    try:
        for config in configs:
            driver = StreamDriver(config, session, on_batch)
            drivers.append(driver)
            driver.open()
            driver.open_waiting()
            driver.drain()
        for driver in drivers:
            queries.append(driver.start(once))
            _initialized(queries[-1])
        _await(drivers, queries, once)
        return [driver.summary for driver in drivers]
    finally:
        for query in queries:
            query.stop()
        for driver in drivers:
            driver.close()


def _properties(configs: Sequence[Config]) -> dict[str, str]:
    return {name: setting for config in configs for name, setting in config.spark.conf.items()}


def _initialized(query: StreamingQuery) -> None:
    """Wait until the query's source has its Python worker: all starting at once would run into Spark's ten seconds."""
    deadline = time.monotonic() + _INITIALIZING
    while query.isActive and time.monotonic() < deadline:
        if not str(query.status["message"]).startswith("Initializing"):
            return
        time.sleep(0.05)


def _await(drivers: list[StreamDriver], queries: list[StreamingQuery], once: bool) -> None:
    """Wait until every query has ended; raise the error of the first that failed."""
    starts = [1] * len(queries)
    while True:
        for i, driver in enumerate(drivers):
            if queries[i].isActive:
                continue
            failure = queries[i].exception()
            if failure is None:
                continue
            if driver.error is None and _NO_WORKER in str(failure) and starts[i] < _STARTS:
                # A busy machine did not start a Python worker within Spark's ten seconds: the same batch again.
                starts[i] += 1
                queries[i] = driver.start(once)
                continue
            raise _error(driver, failure)
        active = [query for query in queries if query.isActive]
        if not active:
            if all(query.exception() is None for query in queries):
                return
            continue
        with suppress(StreamingQueryException):  # looked at above
            active[0].awaitTermination(1)


def _error(driver: StreamDriver, failure: StreamingQueryException) -> ChSinkError:
    return (
        driver.error
        or source_error(failure)
        or StreamFailed(
            f"stream {driver.config.stream_name} stopped: {_short(failure)}",
            hint="run again with --debug for the whole trace",
        )
    )


def _short(failure: StreamingQueryException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[0][:400] if lines else repr(failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry of ``spark-submit``. Exit codes: 0 done, 1 a stream failed, 2 wrong usage or configuration."""
    parser = argparse.ArgumentParser(prog="job.py", description="Debezium change events from Kafka into ClickHouse")
    parser.add_argument("--config", action="append", required=True, metavar="FILE", help="one YAML file per topic")
    parser.add_argument("--once", action="store_true", help="stop when everything that is there now has been read")
    parser.add_argument("--master", metavar="URL", help="Spark master, where spark-submit does not say it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # tells again, with a traceback, what is told below
    try:
        configs = [load(path, given.overrides) for path in given.config]
        run_streams(configs, once=given.once, master=given.master, on_batch=_print)
    except ChSinkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"next: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


def _print(summary: StreamSummary) -> None:
    sys.stdout.write(progress_line(summary) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
