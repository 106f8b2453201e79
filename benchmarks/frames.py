"""Micro-batches of a DataFrame over the partitions of one topic: ``python -m benchmarks frames --partitions 1 100``.

The function of `ch_sink.spark.sink` is called for batch after batch, each a file of its own, as ``foreachBatch`` does:
seconds of a batch (median, lowest, highest), processor time of driver, JVM and workers (median), and the inserts that a
batch makes into the table and into the ledger.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe
from benchmarks.steady import process_tree, processor_time
from ch_sink.clickhouse import ClickHouseSettings, Client, connect
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.spark import sink
from ch_sink.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main"]

_TOPIC = "shop.public.orders"
_TABLE = (
    "CREATE TABLE frames.orders (id Int64, status Nullable(String), _version UInt128, _is_deleted UInt8) "
    "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
)
_WARM_UP = 2
"""Batches that do not count: workers start, and the sink's tables are made."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks frames")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--events", type=int, default=2000, help="of a batch, spread over all partitions")
    parser.add_argument("--batches", type=int, default=7)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks frames", *arguments)
    print("\n  partitions  seconds of a batch   CPU seconds   inserts  into the ledger")
    spark = build_session("frames", "local[2]", {})
    try:
        for partitions in given.partitions:
            with _running() as (client, url), tempfile.TemporaryDirectory() as folder:
                print(_line(spark, client, url, Path(folder), partitions, given), flush=True)
    finally:
        spark.stop()
    return 0


@contextmanager
def _running() -> Iterator[tuple[Client, str]]:
    with EmbeddedClickHouse() as clickhouse:
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE frames")
        client.command(_TABLE)
        yield client, clickhouse.url


def _line(
    spark: "SparkSession", client: Client, url: str, folder: Path, partitions: int, given: argparse.Namespace
) -> str:
    apply = sink(
        {
            "kafka": {"topic": _TOPIC},
            "clickhouse": {"url": url, "database": "frames", "table": "orders"},
        }
    )
    took: list[float] = []
    busy: list[float] = []
    blocks: list[dict[str, int]] = []
    for number in range(_WARM_UP + given.batches):
        frame = spark.read.parquet(str(_written(folder, number, partitions, given.events)))
        began, used = time.monotonic(), processor_time(process_tree(os.getpid()))
        apply(frame, number)
        took.append(time.monotonic() - began)
        busy.append(processor_time(process_tree(os.getpid())) - used)
        blocks.append(_blocks(client))
    took, first, last = took[_WARM_UP:], blocks[_WARM_UP - 1], blocks[-1]
    each = {name: (n - first[name]) / given.batches for name, n in last.items()}
    return (
        f"  {partitions:10}  {statistics.median(took):6.2f} ({min(took):.2f}–{max(took):.2f})"
        f"  {statistics.median(busy[_WARM_UP:]):12.2f}  {each['orders']:8.1f}  {each['ch_sink_ledger']:15.1f}"
    )


def _written(folder: Path, number: int, partitions: int, events: int) -> Path:
    """A file with the events of one batch."""
    each = events // partitions
    rows = []
    for partition in range(partitions):
        for offset in range(number * each, (number + 1) * each):
            row = {"id": offset * partitions + partition, "status": "paid"}
            source: dict[str, object] = {
                "connector": "mysql",
                "name": "my",
                "db": "shop",
                "table": "orders",
                "snapshot": "false",
            }
            source |= {"file": "bin.000001", "pos": offset + 1, "row": 0, "ts_ms": 1_700_000_000_000}
            event = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1_700_000_000_000}
            rows.append(
                {
                    "key": json.dumps({"id": row["id"]}).encode(),
                    "value": json.dumps(event).encode(),
                    "topic": _TOPIC,
                    "partition": partition,
                    "offset": offset,
                    "timestamp": 1_700_000_000_000_000,
                }
            )
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
        ]
    )
    path = folder / f"{number:04}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def _blocks(client: Client) -> dict[str, int]:
    """Table → how many blocks were inserted into it; merges keep the numbers."""
    found = client.rows(
        "SELECT table, max(max_block_number) AS n FROM system.parts WHERE database = 'frames' GROUP BY table"
    )
    return {str(row["table"]): int(row["n"]) for row in found}
