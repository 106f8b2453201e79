"""Micro-batches of a DataFrame over the partitions of one topic: ``python -m benchmarks frames --partitions 1 100``.

The function of `ch_sink.spark.sink` is called for batch after batch, each a file of its own, as ``foreachBatch`` does:
seconds of a batch (median, lowest, highest), processor time of driver, JVM and workers (median), and the inserts that a
batch makes into the table and into the ledger.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe
from benchmarks.steady import process_tree, processor_time
from ch_sink.clickhouse import ClickHouseSettings, Client, connect
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.spark import sink
from ch_sink.spark.session import build_session
from tests.support.frames import TABLE, Shelf, change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main"]

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
            with _running() as shelf:
                print(_line(spark, shelf, partitions, given), flush=True)
    finally:
        spark.stop()
    return 0


@contextmanager
def _running() -> Iterator[Shelf]:
    with EmbeddedClickHouse() as clickhouse, tempfile.TemporaryDirectory() as folder:
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE frames")
        client.command(TABLE.format(place="frames.orders"))
        yield Shelf(Path(folder), client, clickhouse.url, "frames")


def _line(spark: "SparkSession", shelf: Shelf, partitions: int, given: argparse.Namespace) -> str:
    apply = sink(shelf.config())
    took: list[float] = []
    busy: list[float] = []
    blocks: list[dict[str, int]] = []
    for number in range(_WARM_UP + given.batches):
        frame = spark.read.parquet(str(_written(shelf, number, partitions, given.events)))
        began, used = time.monotonic(), processor_time(process_tree(os.getpid()))
        apply(frame, number)
        took.append(time.monotonic() - began)
        busy.append(processor_time(process_tree(os.getpid())) - used)
        blocks.append(_blocks(shelf.client))
    took, first, last = took[_WARM_UP:], blocks[_WARM_UP - 1], blocks[-1]
    each = {name: (n - first[name]) / given.batches for name, n in last.items()}
    return (
        f"  {partitions:10}  {statistics.median(took):6.2f} ({min(took):.2f}–{max(took):.2f})"
        f"  {statistics.median(busy[_WARM_UP:]):12.2f}  {each['orders']:8.1f}  {each['ch_sink_ledger']:15.1f}"
    )


def _written(shelf: Shelf, number: int, partitions: int, events: int) -> Path:
    """A file with the events of one batch."""
    first = number * (events // partitions)
    offsets = range(first, first + events // partitions)
    records = {
        p: [change(offset * partitions + p, offset + 1, "paid") for offset in offsets] for p in range(partitions)
    }
    return shelf.write(records, dict.fromkeys(records, first))


def _blocks(client: Client) -> dict[str, int]:
    """Table → how many blocks were inserted into it; merges keep the numbers."""
    found = client.rows(
        "SELECT table, max(max_block_number) AS n FROM system.parts WHERE database = 'frames' GROUP BY table"
    )
    return {str(row["table"]): int(row["n"]) for row in found}
