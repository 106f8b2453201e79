"""`history`: what the ledger records of a stream's batches, as a DataFrame."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ch_sink.config import load_rows
from ch_sink.discovery.wiring import client_of, ledger_of
from ch_sink.spark.change_feed import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = (
    "stream string, batch long, topic string, topic_id string, partition int, first_offset long, end_offset long, "
    "rows long, deletes long, dead_letters long, source_time timestamp, started timestamp, finished timestamp, "
    "run string"
)


def history(spark: "SparkSession", config: str | Path | Mapping[str, Any], limit: int = 10_000) -> "DataFrame":
    """The newest ``limit`` results of a stream, one row for each range of offsets [first_offset, end_offset).

    Args:
        spark: of either kind, classic or Connect.
        config: as `ch_sink.spark.sink` takes it. Results older than a stream's newest 500 of a partition are folded
            into sums, which `ch_sink status` shows.

    Raises:
        ConfigError, ClickHouseError.
    """
    loaded = load_rows(config, topic=TOPIC)
    found = ledger_of(loaded, client_of(loaded)).history(limit)
    rows = [
        (
            *(loaded.stream_name, r.batch, r.topic, r.topic_id, r.partition, r.start, r.end),
            *(r.counts.rows, r.counts.deletes, r.counts.dead_letters),
            *(_time(r.counts.source_time / 1000), _time(r.started), _time(r.finished), r.run_id),
        )
        for r in found
        if r.end > r.start
    ]
    return spark.createDataFrame(rows, _SCHEMA)


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
