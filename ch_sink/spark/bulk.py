"""Snapshot rows in bulk on Spark: ranges are read in parallel, and their rows shuffled by table partition."""

import pickle
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseWriter
from ch_sink.clickhouse.filled_by import filled_by
from ch_sink.config import Config
from ch_sink.kafka import KafkaSettings
from ch_sink.pipeline.target import Target
from ch_sink.spark.wiring import batch_decoder, client_for, concerned_by, read_chunks, records_before
from ch_sink.stream.bulk import BulkPorts, Piece, Run, Wave, WaveDone, read_piece, store_units
from ch_sink.stream.tasks import RangeTask

__all__ = ["SparkLoad"]

_RUNS = "unit string, place long, content binary"
_RESULT = ""
"""In place of a unit: the content is what reading a range came to."""
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEW = "4"
"""Runs that pass to Python at once: each has megabytes."""


@dataclass(frozen=True)
class SparkLoad:
    """See `ch_sink.stream.bulk.Load`."""

    spark: SparkSession
    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included: it travels inside the pickled functions."""

    @property
    def slots(self) -> int:
        """See Load."""
        return self.spark.sparkContext.defaultParallelism

    def __call__(self, wave: Wave, /) -> WaveDone:
        """See Load."""
        self.spark.conf.set(_BATCH, _FEW)
        slots, tasks = self.slots, len(wave.tasks)
        runs = self.spark.range(0, tasks, 1, tasks).mapInArrow(_reader(self.config, wave), _RUNS)
        sorted_runs = runs.repartition(slots * 2, "unit").sortWithinPartitions("unit", "place")
        found = sorted_runs.mapInArrow(_storer(self.config, wave), _RUNS).collect()
        pieces = {row.place: pickle.loads(bytes(row.content)) for row in found if row.unit == _RESULT}
        stored = [row for row in found if row.unit != _RESULT]
        return WaveDone(
            tuple(pieces[n] for n in range(tasks)),
            sum(int(row.unit) for row in stored),
            sum(row.place for row in stored),
        )


Batches = Iterator[pa.RecordBatch]


def _reader(config: str, wave: Wave) -> Callable[[Batches], Batches]:
    pickled = [pickle.dumps(task) for task in wave.tasks]

    def ch_sink_read(batches: Batches) -> Batches:
        settings = Config.from_task_json(config)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                task: RangeTask = pickle.loads(pickled[number])
                yield from _rows(read_piece(task, number, _bulk_ports(settings, task)), number)

    return ch_sink_read


def _rows(steps: Generator[Run, None, Piece], number: int) -> Batches:
    while True:
        try:
            run = next(steps)
        except StopIteration as end:
            yield _row(_RESULT, number, pickle.dumps(end.value))
            return
        yield _row(run.unit, run.order, run.rows)


def _storer(config: str, wave: Wave) -> Callable[[Batches], Batches]:
    table, wave = wave.tasks[0].table, Wave(wave.number, wave.label, ())

    def ch_sink_store(batches: Batches) -> Batches:
        settings = Config.from_task_json(config)
        client, target = client_for(settings), Target.of(table, settings.policy())
        results: list[pa.RecordBatch] = []

        def runs() -> Iterator[Run]:
            for batch in batches:
                for unit, order, rows in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if unit == _RESULT:
                        results.append(_row(unit, order, rows))
                    else:
                        yield Run(unit, order, rows)

        blocks, stored = store_units(
            runs(), wave, target, ClickHouseWriter(client, table), lambda: filled_by(client, table, wave.label)
        )
        yield from results
        yield _row(str(blocks), stored, b"")

    return ch_sink_store


def _row(unit: str, place: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"unit": pa.array([unit]), "place": pa.array([place], pa.int64()), "content": pa.array([content], pa.binary())}
    )


def _bulk_ports(config: Config, task: RangeTask) -> BulkPorts:
    """Real Kafka and ClickHouse for reading a range."""
    kafka, concerned = KafkaSettings(config.kafka.client()), concerned_by(config)
    return BulkPorts(
        config.policy(),
        lambda table, before: batch_decoder(config, table, before),
        lambda wanted, first: read_chunks(kafka, concerned, wanted, first),
        lambda partition: records_before(kafka, task, concerned),
        ClickHouseDeadLetters(
            client_for(config), config.state_database, config.tables.dead_letters, task.stream, task.topic_id
        ),
    )
