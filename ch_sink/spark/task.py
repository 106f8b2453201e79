"""One offset range, from Kafka into ClickHouse, inside one Python worker: consume, plan, insert, overlapping."""

import gc
import math
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ch_sink.clickhouse import (
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHouseLedger,
    ClickHouseLookup,
    ClickHousePending,
    ClickHouseSettings,
    ClickHouseWriter,
    Client,
    connect,
)
from ch_sink.config import Config
from ch_sink.decode import Decoder
from ch_sink.errors import ChSinkError, ClickHouseError
from ch_sink.kafka import KafkaHistory, KafkaSettings, RangeConsumer, range_consumer, schema_registry
from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.pipeline.partition_sink import Applied, PartitionSink, StreamName
from ch_sink.pipeline.plan import Ports
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.timings import Stages
from ch_sink.ports import ChunkCut, RangeProgress, StoredRows, TaskLedger
from ch_sink.stream.messages import Failure, RangeResult, RangeTask, decode_task, encode
from ch_sink.table.model import TargetTable

__all__ = ["StreamSettings", "open_sink", "run_range", "run_ranges"]

_AHEAD = 1
"""Chunks that are read before they are asked for."""


@dataclass(frozen=True)
class StreamSettings:
    """What a task needs to know; travels in a broadcast, since the configuration holds secrets."""

    config: str
    """JSON of the Config, secrets included."""
    table: TargetTable

    def __repr__(self) -> str:
        return f"StreamSettings({self.table.qualified})"


def run_ranges(settings: Any, tasks: Iterator[str]) -> Iterator[str]:
    """For ``mapPartitions``: results (JSON) of tasks (JSON). ``settings`` is the broadcast StreamSettings."""
    for text in tasks:
        yield encode(run_range(settings.value, decode_task(text)))


def run_range(settings: StreamSettings, task: RangeTask) -> RangeResult:
    """Carry one range out. Errors come back in the result, with what was done before them."""
    result = RangeResult(task.topic, task.topic_id, task.partition, task.start, task.start, task.state)
    began = time.monotonic()
    collecting = gc.isenabled()
    gc.disable()  # rows by the hundred thousand, none of them in a cycle
    try:
        _run(settings, task, result)
    except ChSinkError as error:
        result.failure = Failure(type(error).__name__, str(error), error.hint, traceback.format_exc())
    except Exception as error:  # noqa: BLE001 (the driver shows it)
        result.failure = Failure(type(error).__name__, str(error) or repr(error), None, traceback.format_exc())
    finally:
        if collecting:
            gc.enable()
    result.seconds["range"] = time.monotonic() - began
    return result


@cache
def _config(text: str) -> Config:
    return Config.from_task_json(text)


class _Lookup:
    """A lookup by whatever columns the topic's key has."""

    def __init__(self, client: Client, table: TargetTable) -> None:
        self._client, self._table = client, table
        self._by: dict[tuple[str, ...], ClickHouseLookup] = {}

    def fetch(self, keys: Any) -> StoredRows:
        names = tuple(keys.column_names)
        if names not in self._by:
            self._by[names] = ClickHouseLookup(self._client, self._table, names)
        return self._by[names].fetch(keys)


class _History:
    """Earlier records, through a consumer of its own that is opened when a position first steps back."""

    def __init__(self, kafka: KafkaSettings, task: RangeTask) -> None:
        self._kafka, self._task = kafka, task

    def before(self, offset: int, limit: int) -> Records:
        consumer = RangeConsumer(self._kafka)
        try:
            return KafkaHistory(consumer, self._task.topic, self._task.partition).before(offset, limit)
        finally:
            consumer.close()


def open_sink(
    settings: StreamSettings, task: RangeTask, *, caught_up: bool = False
) -> tuple[PartitionSink, TaskLedger]:
    """The sink of one partition over the real ports. Raises ClickHouseError.

    ``caught_up``: all records that there are have been read, so that a change that still waits has waited in vain.
    """
    config = _config(settings.config)
    client = connect(ClickHouseSettings(**config.clickhouse.connection()))
    policy = config.policy()
    table, state_db, tables, stream = settings.table, config.state_database, config.tables, config.stream_name
    target = Target.of(table, policy)
    ledger = ClickHouseLedger(client, state_db, tables.ledger, stream)
    sink = PartitionSink(
        StreamName(stream, task.topic, task.topic_id, task.partition, task.attempt, task.replay),
        target,
        lambda before: Decoder(
            table,
            policy,
            want_before=before,
            format=config.format,
            registry=schema_registry(config.kafka.registry()),
        ),
        Ports(
            lookup=_Lookup(client, table),
            handover=ClickHouseHandover(client, state_db, tables.handover, stream, table),
            history=_History(KafkaSettings(config.kafka.client()), task),
        ),
        ClickHouseWriter(client, table),
        ClickHouseDeadLetters(client, state_db, tables.dead_letters, stream, task.topic_id),
        ClickHousePending(client, state_db, tables.pending, stream),
        deadline=config.handover_deadline if caught_up else math.inf,
        progress=lambda done: ledger.put_progress(
            RangeProgress(task.topic_id, task.partition, task.start, done.end, done.state.to_json())
        ),
        cuts=task.cuts,
        note_cut=lambda offset: ledger.put_cut(ChunkCut(task.topic_id, task.partition, offset)),
    )
    return sink, ledger


def _run(settings: StreamSettings, task: RangeTask, result: RangeResult) -> None:
    config = _config(settings.config)
    kafka = KafkaSettings(config.kafka.client())
    sink, ledger = open_sink(settings, task)
    start, state = task.start, State.from_json(task.state)
    if task.attempt and sink.target.collapsing:
        settle(connect(ClickHouseSettings(**config.clickhouse.connection())), settings.table)
        reached = ledger.progress_of(task.topic_id, task.partition, task.start)
        if reached is not None and reached.end <= task.end:
            start, state = reached.end, State.from_json(reached.state).with_floor(state.floor)
            result.end, result.state = start, state.to_json()
    slices = range_consumer(kafka).read(
        task.topic, task.partition, start, task.end, max(config.chunk_offsets // 4, 1), config.chunk_bytes // 4
    )
    chunks = cut(slices, start, task.end, chunk_offsets=config.chunk_offsets, chunk_bytes=config.chunk_bytes)
    with _ahead(chunks) as ready:
        try:
            for done in sink.run(_counted(ready, sink.stages), state):
                _note(result, done)
        finally:
            result.seconds.update(sink.stages.seconds)
    result.waiting = sink.waiting


def _counted(chunks: Iterator[Chunk], stages: Stages) -> Iterator[Chunk]:
    while True:
        with stages.stage("consume"):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


def _note(result: RangeResult, done: Applied) -> None:
    result.end = done.end
    result.state = done.state.to_json()
    result.records += done.records
    result.rows += done.rows
    result.dead_letters += done.dead_letters
    result.last_source_ts = max(result.last_source_ts, done.last_source_ts)
    result.add_counts(done.counts)
    result.add_steps(done.steps)
    result.set_barrier(done.barrier)
    result.cuts.append(done.end)


class _ahead:  # noqa: N801 (used as a function)
    """Reads chunks in a thread of their own, at most `_AHEAD` before they are asked for."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._queue: queue.Queue[Chunk | BaseException | None] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="consume", daemon=True)

    def __enter__(self) -> Iterator[Chunk]:
        self._thread.start()
        return self._drain()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _fill(self) -> None:
        last: BaseException | None = None
        try:
            for chunk in self._chunks:
                if not self._put(chunk):
                    return
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            last = error
        self._put(last)

    def _put(self, thing: Chunk | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(thing, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _drain(self) -> Iterator[Chunk]:
        while (thing := self._queue.get()) is not None:
            if isinstance(thing, BaseException):
                raise thing
            yield thing


def settle(client: Client, table: TargetTable, patience: float = 60.0) -> None:
    """Wait until no insert of a killed attempt is under way: the lookups of this one must see it whole or never."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            running = client.rows(
                "SELECT count() AS n FROM system.processes WHERE query_kind = 'Insert' AND has(tables, {table:String})",
                {"table": f"{table.database}.{table.name}"},
                doing="look for running inserts",
            )
        except ClickHouseError:
            return  # no right to see them: the token still keeps a repeat out
        if not running or not running[0]["n"]:
            return
        time.sleep(0.2)
