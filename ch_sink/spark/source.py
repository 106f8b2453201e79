"""The streaming source of offset ranges: one small row per range. Tasks fetch the records from Kafka themselves.

Spark plans, limits and checkpoints; each row is one topic-partition's range of the micro-batch. Options (names without
regard to case): ``topic``, ``kafka.properties.secret`` (librdkafka properties as JSON; Spark hides options by that
word), ``startingOffsets``, ``maxOffsetsPerTrigger``, ``chunkOffsets``, ``onDataLoss``, ``topicRecreated``,
``failureFile``.
"""

import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.kafka.offsets import TopicOffsets
from ch_sink.kafka.settings import KafkaSettings
from ch_sink.model.topic import TopicState
from ch_sink.stream.offset_ranges import Choices, OffsetRange, StreamOffset, initial_offset, next_offset

__all__ = ["FORMAT", "SCHEMA", "KafkaRanges", "SourceFailure", "read_ranges"]

FORMAT = "ch_sink_ranges"
SCHEMA = "topic string, topic_id string, partition int, start long, end long, lost long, high long"
"""One row per range; the columns are those of `ch_sink.stream.offset_ranges.OffsetRange`."""


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """What ended the planning of a stream's ranges: a file from the source's process to the driver's, on one host.

    Spark carries an error's text only.
    """

    path: Path

    def write(self, error: ChSinkError) -> None:
        """Called in the source's process, before the error is raised there."""
        fresh = self.path.with_suffix(".new")
        with suppress(OSError):  # then the driver has what Spark says of it
            fresh.write_bytes(pickle.dumps(error))
            os.replace(fresh, self.path)

    def read(self) -> ChSinkError | None:
        """The error, once; None if planning has not failed."""
        try:
            found = self.path.read_bytes()
        except OSError:
            return None
        self.path.unlink(missing_ok=True)
        error = pickle.loads(found)
        return error if isinstance(error, ChSinkError) else None


def read_ranges(
    spark: SparkSession,
    settings: Mapping[str, object],
    topic: str,
    *,
    starting_offsets: str | Mapping[str, Any] = "earliest",
    max_offsets: int | None = None,
    chunk_offsets: int = 50_000,
    on_data_loss: Literal["fail", "continue"] = "fail",
    topic_recreated: Literal["fail", "restart"] = "fail",
    failure: SourceFailure | None = None,
) -> DataFrame:
    """A streaming DataFrame of the topic's offset ranges (``SCHEMA``), for ``foreachBatch``.

    ``starting_offsets`` applies only if there is no checkpoint: see `ch_sink.stream.offset_ranges.initial_offset`.
    ``max_offsets`` limits the offsets of one micro-batch. What fails while planning ends the query with a
    StreamingQueryException; ``failure.read()`` then returns the error itself.
    """
    spark.dataSource.register(KafkaRanges)
    given = starting_offsets if isinstance(starting_offsets, str) else json.dumps(dict(starting_offsets))
    reader = spark.readStream.format(FORMAT).option("topic", topic)
    reader = reader.option("kafka.properties.secret", KafkaSettings(settings).to_json())
    reader = reader.option("startingOffsets", given).option("chunkOffsets", chunk_offsets)
    reader = reader.option("onDataLoss", on_data_loss).option("topicRecreated", topic_recreated)
    if max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    if failure is not None:
        reader = reader.option("failureFile", str(failure.path))
    return reader.load()


class KafkaRanges(DataSource):
    """The data source behind ``read_ranges``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return FORMAT

    def schema(self) -> str:
        """``SCHEMA``."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> "_Reader":  # noqa: N802 (Spark's name)
        """The planning side; it runs in a Python process of its own beside the driver."""
        return _Reader(dict(self.options))


class _Batch(InputPartition):
    """All ranges of a micro-batch. They are a handful of numbers, and each Spark partition would cost a task."""

    def __init__(self, planned: Sequence[OffsetRange]) -> None:
        super().__init__([astuple(one)[:7] for one in planned])


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark passes the names in lower case.
        given = {name.lower(): setting for name, setting in options.items()}
        at = given.get("failurefile")
        self._failure = SourceFailure(Path(at)) if at else None
        with self._kept():
            self._configure(given)

    def _configure(self, given: Mapping[str, str]) -> None:
        self._topic = given["topic"]
        self._settings = KafkaSettings.from_json(given["kafka.properties.secret"])
        self._starting: str | dict[str, Any] = given.get("startingoffsets", "earliest")
        if isinstance(self._starting, str) and self._starting.lstrip().startswith("{"):
            self._starting = json.loads(self._starting)
        limit = given.get("maxoffsetspertrigger")
        self._limit = int(limit) if limit else None
        self._choices = Choices(
            cast(Any, _one_of(given, "ondataloss", ("fail", "continue"))),
            cast(Any, _one_of(given, "topicrecreated", ("fail", "restart"))),
            int(given.get("chunkoffsets", 50_000)),
        )
        self._offsets: TopicOffsets | None = None
        self._ceiling: TopicState | None = None
        self._latest: TopicState | None = None
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with self._kept():
            return initial_offset(self._state(), self._starting).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._kept():
            self._ceiling = self._state()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with self._kept():
            last = StreamOffset.from_json(start)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            ceiling = None if self._ceiling is None else self._ceiling.high
            planned = next_offset(last, self._state(), most, self._choices, ceiling)
            # The same object for the same offset: Spark compares its JSON to see whether there is anything to do.
            self._planned = start if planned is last else planned.to_json()
            return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._latest is None:
            return None
        return {str(partition): high for partition, high in sorted(self._latest.high.items())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        with self._kept():
            batch = StreamOffset.from_json(end)
            # The batch was planned by an earlier run of this job: is it still the same topic?
            if end != self._planned and self._recreated(batch):
                return []
            return [_Batch(batch.ranges())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield from partition.value

    def stop(self) -> None:
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep an error for the driver."""
        try:
            yield
        except ChSinkError as error:
            if self._failure is not None:
                self._failure.write(error)
            raise

    def _state(self) -> TopicState:
        if self._offsets is None:
            self._offsets = TopicOffsets(self._settings)
        self._latest = self._offsets.state(self._topic)
        return self._latest

    def _recreated(self, batch: StreamOffset) -> bool:
        state = self._state()
        if state.topic_id == batch.topic_id:
            return False
        # Raises unless the user chose to restart; then nothing is left to read in the old topic's ranges.
        next_offset(batch, state, None, self._choices)
        return True


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    chosen = given.get(name, allowed[0])
    if chosen not in allowed:
        raise ConfigError(f"option {name} is {chosen!r}", hint=f"Use one of: {', '.join(allowed)}.")
    return chosen
