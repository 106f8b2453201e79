"""One stream's streaming query: Spark plans the ranges, the coordinator carries them out."""

import logging
import time
import traceback
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ch_sink.config import Config
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.kafka import KafkaSettings
from ch_sink.spark.source import SourceFailure, read_ranges
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.offset_ranges import OffsetRange
from ch_sink.stream.tasks import Execute

__all__ = ["StreamQuery"]

log = logging.getLogger("ch_sink")

_STARTS = 4
"""How often a query is started that ends by a failure of Spark's own, such as a Python worker that came up too late."""


class BatchFailed(Exception):
    """The whole text that Spark gets of a failed batch; the error itself is kept in Python.

    Spark searches the text of such an error by a regular expression that recurses for every character
    (``StreamExecution.isInterruptionException``): a JVM trace in it overflows the stack.
    """


@dataclass
class StreamQuery:
    """A stream and its query. ``failure`` is what ended it."""

    config: Config
    spark: SparkSession
    coordinator: Coordinator
    execute: Execute
    source_failure: SourceFailure
    failure: ChSinkError | None = None
    busy: bool = False
    """A batch is running."""
    stopping: bool = False
    """No further batch begins."""
    _query: StreamingQuery | None = None
    _starts: int = field(default=0, repr=False)
    _once: bool = False

    def start(self, once: bool) -> None:
        """Start the query. ``once``: it ends when everything that is there now has been read."""
        config = self.config
        self._once, self._starts = once, self._starts + 1
        ranges = read_ranges(
            self.spark,
            KafkaSettings(config.kafka.client()),
            config.kafka.topic,
            starting_offsets=(self.coordinator.progress() or "earliest" if config.start == "ledger" else config.start),
            max_offsets=config.max_offsets_per_trigger,
            chunk_offsets=config.chunk_offsets,
            on_data_loss=config.on_data_loss,
            topic_recreated=config.topic_recreated,
            failure=self.source_failure,
        )
        writer = ranges.writeStream.foreachBatch(self._batch).option("checkpointLocation", config.checkpoint)
        writer = writer.queryName(config.stream_name)
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{config.trigger_interval} seconds")
        self._query = writer.start()

    def wait_until_initialized(self, seconds: float = 30.0) -> None:
        """Wait until the source has its Python worker: if all start at once, they exceed Spark's ten seconds."""
        deadline = time.monotonic() + seconds
        while self._query is not None and self._query.isActive and time.monotonic() < deadline:
            if not str(self._query.status["message"]).startswith("Initializing"):
                return
            time.sleep(0.05)

    def is_active(self) -> bool:
        """Whether the query runs; one that Spark itself ended is started again."""
        assert self._query is not None
        if self._query.isActive:
            return True
        ended = self._query.exception()
        if ended is None or self.failure is not None:
            return False
        self.failure = self.source_failure.read()
        if self.failure is not None or self.stopping:
            return False
        if self._starts < _STARTS:
            log.debug("stream %s: started again after %s", self.config.stream_name, ended)
            self.start(self._once)
            return True
        self.failure = StreamFailed(
            f"stream {self.config.stream_name} stopped: {_short(ended)}",
            hint="run again with --debug for the whole trace",
        )
        return False

    def wait(self, seconds: float) -> None:
        """Wait for the query to end."""
        try:
            assert self._query is not None
            self._query.awaitTermination(seconds)  # type: ignore[arg-type]  # a fraction of a second is fine
        except PySparkException:
            return  # `is_active` looks at it

    def stop(self) -> None:
        """End the query, in the midst of a batch if one runs."""
        self.stopping = True
        if self._query is not None:
            self._query.stop()

    def _batch(self, ranges: DataFrame, _batch_id: int) -> None:
        if self.stopping or not self._carried_out(ranges):
            raise BatchFailed(f"the batch of stream {self.config.stream_name} ended early")

    def _carried_out(self, ranges: DataFrame) -> bool:
        """Run a batch; whether it is done. Nothing is raised, so that the error's text never reaches Spark."""
        self.busy = True
        try:
            planned = [OffsetRange(**row.asDict()) for row in ranges.collect()]
            self.coordinator.run_batch(planned, self.execute)
        except ChSinkError as error:
            self.failure = error
        except (PySparkException, Py4JError) as error:
            # Spark's own failure, or the query was stopped: `is_active` decides whether to start it again.
            log.debug("stream %s: %s", self.config.stream_name, error)
        except Exception as error:  # noqa: BLE001 (shown by whoever runs the streams)
            self.failure = StreamFailed(
                f"stream {self.config.stream_name} stopped: {type(error).__name__}: {error}",
                hint="run again with --debug for the whole trace",
            )
            self.failure.trace = traceback.format_exc()  # type: ignore[attr-defined]
        else:
            return True
        finally:
            self.busy = False
        return False


def _short(failure: BaseException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[0][:400] if lines else repr(failure)
