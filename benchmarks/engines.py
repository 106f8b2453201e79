"""``python -m benchmarks engines``: what inserts and reads cost on each engine that is installed.

Blocks of rows with a text, a UUID and a time go into a ReplacingMergeTree by the sink's own writer; then the view's
query counts them. Given is the server's processor time, which other work on the machine disturbs least.
"""

import argparse
import os
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from benchmarks.machine import describe
from ch_sink.clickhouse import ClickHouseSettings, ClickHouseWriter, connect, detect
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert

TABLE = (
    "CREATE TABLE b.t (id Int64, name String, u UUID, at DateTime64(6), v UInt64, d UInt8) "
    "ENGINE = ReplacingMergeTree(v, d) ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
)


def processor_seconds(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(first: int, rows: int) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"customer number {i}" for i in ids]),
            "u": pa.array([str(uuid.UUID(int=i * 2**64 + i)) for i in ids]),
            "at": pa.array([datetime(2026, 1, 1)] * rows, pa.timestamp("us", "UTC")),
            "v": pa.array(ids, pa.uint64()),
            "d": pa.array([0] * rows, pa.uint8()),
        }
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks engines")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000, help="of a block")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    folder = Path(sys.prefix) / "engines"
    older = sorted(found.name for found in folder.iterdir() if found.is_dir()) if folder.is_dir() else []
    blocks = [block(i * given.rows, given.rows) for i in range(given.blocks)]
    print(f"{given.blocks} blocks of {given.rows} rows; µs of the server's processor time for a row\n")
    print(f"{'engine':<12} {'insert':>8} {'FINAL':>8}")
    for engine in (*older, ""):
        with EmbeddedClickHouse(engine=engine) as server:
            client = connect(ClickHouseSettings(url=server.url))
            client.command("CREATE DATABASE b")
            client.command(TABLE)
            assert server.pid is not None
            writer = ClickHouseWriter(client, detect(client, "b", "t", policy_of()))
            spent = [processor_seconds(server.pid)]
            for number, rows in enumerate(blocks):
                writer.write(Insert(rows, "all"), f"block {number}")
            spent.append(processor_seconds(server.pid))
            client.rows("SELECT count(), max(at), max(u) FROM b.t FINAL WHERE d = 0")
            spent.append(processor_seconds(server.pid))
            insert, read = ((b - a) / (given.blocks * given.rows) * 1e6 for a, b in pairwise(spent))
            print(f"{client.server_version:<12} {insert:>8.2f} {read:>8.2f}", flush=True)
