"""`sink` and what it shares with `changes`: a function for ``foreachBatch`` that keeps its stream while its query runs.

A query holds its stream under a claim of the ledger. Another process that wants it is refused by that claim. Within
one process queries come and go without a word, so the query that holds a stream is asked for: one that has ended loses
it, one that runs keeps it, and the other is refused.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ch_sink.clickhouse import run_statement
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config, load_rows
from ch_sink.discovery.job_topics import existing_tables
from ch_sink.discovery.wiring import client_of, kafka_settings, states_of, table_spec
from ch_sink.errors import ChSinkError, ConfigError, DataLoss, LedgerConflict
from ch_sink.kafka import range_consumer
from ch_sink.spark.executor import context_of
from ch_sink.spark.frame_stream import FrameStream, Known, Span
from ch_sink.spark.kafka_rows import expect_kafka_columns, kafka_rows, spans_of
from ch_sink.stream.standing import read_current, standing
from ch_sink.stream.tasks import Execute
from ch_sink.table.ddl import state_tables
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("ch_sink")

Given = str | Path | Mapping[str, Any]
Stream = tuple[str, str, str]


def sink(config: Given) -> "Sink":
    """A function for ``writeStream.foreachBatch``, which applies Debezium's change events to a ClickHouse table.

    The DataFrame has the columns of Spark's Kafka source: ``key`` and ``value`` (binary), ``topic``, ``partition``,
    ``offset``, ``timestamp``, and ``headers`` where keys of rows may change. It may be called with any such DataFrame:
    what was applied before is skipped.

    Args:
        config: path of a YAML file, or a mapping of what it would hold. Without ``kafka.bootstrap.servers`` the
            topic's name stands for its id.

    Raises:
        ConfigError: the configuration is wrong. The function itself raises ChSinkError, and nothing of the batch
            counts as applied then.
    """
    loaded = load_rows(config)
    if not loaded.kafka.bootstrap and loaded.policy().columns.hides:
        raise ConfigError(
            "columns are masked or excluded, so a change that has to wait is not stored: it is read again from Kafka",
            hint="Name the brokers (kafka.bootstrap.servers).",
        )
    return Sink(loaded)


class Sink:
    """The result of `sink`. Spark pickles it, secrets included, where the function runs in a process of the server."""

    def __init__(self, config: Config) -> None:
        self._config = config.to_task_json()

    def __call__(self, frame: "DataFrame", batch_id: int = 0) -> None:
        """Apply one batch. Raises ChSinkError."""
        del batch_id  # the offsets say what a batch is
        config = Config.from_task_json(self._config)
        with with_hints():
            expect_kafka_columns(frame)
            spans = spans_of(frame, config.kafka.topic)
            if spans:
                with closing(SharedTopics()) as topics:
                    work = spans, kafka_rows(frame, spans, self._config)
                    applied(frame, config, _known(config, topics), max(spans) + 1, lambda _: work)


def _known(config: Config, topics: SharedTopics) -> Known:
    """The topic as its brokers know it, if there are any. Raises KafkaError."""
    if not config.kafka.bootstrap:
        return Known(config.kafka.topic)
    kafka = kafka_settings(config)
    state = topics.state(kafka, config.kafka.topic)

    def holds(partition: int, first: int, end: int) -> bool:
        try:
            with range_consumer(kafka) as consumer:
                return any(map(len, consumer.read(config.kafka.topic, partition, first, end)))
        except DataLoss:
            return True

    return Known(state.topic_id, state.high, holds)


@dataclass(slots=True)
class _Held:
    """A stream that a query of this process holds."""

    stream: FrameStream
    query: str
    active: Callable[[], bool]


_held: dict[Stream, _Held] = {}
_lock = threading.Lock()


Work = Callable[[FrameStream], tuple[Mapping[int, Span], Execute]]
"""The spans of a batch, and the executor of tasks on it; asked once the stream is claimed. Raises ChSinkError."""


def applied(frame: "DataFrame", config: Config, known: Known, partitions: int, work: Work) -> None:
    """Apply a batch to its stream, which is opened unless this query holds it.

    A batch that no query brings gives its stream back at the end. Raises ChSinkError.

    ``partitions``: how many the batch shows.
    """
    place = config.clickhouse
    key = place.url, config.state_database, config.stream_name
    query, active = _query(frame.sparkSession)
    with _lock:
        held = _held.get(key)
        if held is not None and held.query != query and held.active():
            raise LedgerConflict(
                f"stream {config.stream_name!r} is written by another query, {held.query}",
                hint="Stop one of them, or give this one its own stream name and table.",
            )
        if held is not None and (held.query != query or is_paused(config)):
            _held.pop(key).stream.close()
            held = None
    stream = held.stream if held is not None else _opened(config, known, partitions)
    try:
        stream.apply(known, *work(stream))
    except BaseException:
        with _lock:
            _held.pop(key, None)
        stream.close()
        raise
    if not query:
        stream.close()
    elif held is None:
        with _lock:
            _held[key] = _Held(stream, query, active)


def _opened(config: Config, known: Known, partitions: int) -> FrameStream:
    prepare(config)
    await_resume(config)
    text = config.to_task_json()
    with closing(SharedTopics()) as topics:
        stream = FrameStream(stream_settings(config), stream_ports(config, topics))
    try:
        stream.open(known, partitions, lambda tasks: [run_configured(text, task) for task in tasks])
    except BaseException:
        stream.close()
        raise
    return stream


def is_paused(config: Config) -> bool:
    """Whether somebody has paused the stream; ends the pause of a command that was killed. Raises ClickHouseError."""
    name, states = config.stream_name, states_of(config, client_of(config).settings)
    return standing(read_current(states, [name], time.time())[name]).state == "paused"


def await_resume(config: Config) -> None:
    """Wait while the stream is paused. Raises ClickHouseError."""
    told = False
    while is_paused(config):
        if not told:
            log.warning("stream %s is paused; its next batch waits for `ch_sink resume`", config.stream_name)
            told = True
        time.sleep(1.0)


def prepare(config: Config) -> None:
    """Create the sink's own tables where they are missing. Raises ClickHouseError, ConfigError."""
    client, own = client_of(config), config.state_tables
    names = {own.ledger, own.dead_letters, own.handover, own.pending, own.columns}
    if names - existing_tables(client, config.state_database, names):
        for statement in state_tables(table_spec(config)):
            run_statement(client, statement)
    if config.merge:
        return
    table = f":{config.clickhouse.database}.{config.clickhouse.table}"
    found = StateTable(client, config.state_database, own.ledger).rows(
        "SELECT DISTINCT stream FROM $table WHERE endsWith(stream, {table:String}) AND stream != {stream:String}",
        table=table,
        stream=config.stream_name,
    )
    for row in found:
        raise ConfigError(
            f"table {table[1:]} belongs to another stream, {row['stream']!r}",
            hint=f"Write to a separate table, or continue that stream: stream: '{row['stream']}'.",
        )


def _query(spark: "SparkSession") -> tuple[str, Callable[[], bool]]:
    """The streaming query that calls, and whether it still runs; empty if none does."""
    context = context_of(spark)
    if context is None:
        # Spark Connect runs the function of each query in a process of its own, which ends with the query.
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        return (str(os.getpid()), lambda: True) if main and main.name.endswith("foreach_batch_worker") else ("", bool)
    query, run = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
    if not query:
        return "", bool

    def active() -> bool:
        with suppress(Exception):
            uuid = context._jvm.java.util.UUID.fromString(query)
            running = spark._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
            return running is not None and str(running.runId().toString()) == run
        return False

    return f"{query} (run {run})", active


class with_hints:  # noqa: N801
    """Add the hint of an error to what Spark shows of it: the traceback."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ChSinkError) and error.hint:
            error.add_note(error.hint)
