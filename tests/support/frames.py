"""Kafka-shaped rows as files that any Spark session reads, the table that they go to, and its configuration."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse

needs_data_sources = pytest.mark.skipif(
    find_spec("pyspark.sql.datasource") is None, reason="this Spark has no Python data sources"
)

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
TOPIC = "shop.public.orders"
_TIME = 1_700_000_000_000_000
TABLE = (
    "CREATE TABLE {place} (id Int64, status Nullable(String), _version UInt128, _is_deleted UInt8) "
    "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
)


def change(number: int, position: int, status: str | None = "new", op: str = "c", **more: Any) -> tuple[Any, Any]:
    """Key and value of one change of row ``number``; ``op``: c, u, d or t."""
    row = {"id": number, "status": status, **more}
    source = {"connector": "mysql", "name": "my", "ts_ms": 1_700_000_000_000, "snapshot": "false", "db": "shop"}
    source |= {"table": "orders", "file": "bin.000001", "pos": position, "row": 0}
    after, before = (None, row) if op == "d" else (None, None) if op == "t" else (row, None)
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_700_000_000_000}
    return (None if op == "t" else {"id": number}), value


@dataclass
class Shelf:
    """A folder of batches, and the table that they are applied to."""

    folder: Path
    client: Client
    url: str
    database: str
    batches: int = 0

    def config(self, **more: Any) -> dict[str, Any]:
        return {
            "kafka": {"topic": TOPIC},
            "clickhouse": {"url": self.url, "database": self.database, "table": "orders"},
            **more,
        }

    def write(self, records: Mapping[int, Sequence[tuple[Any, Any]]], first: Mapping[int, int] | None = None) -> Path:
        """One more file with these records, by partition. ``first``: where their offsets begin, if not at 0."""
        rows = [
            {
                "key": None if key is None else json.dumps(key).encode(),
                "value": None if value is None else json.dumps(value).encode(),
                "topic": TOPIC,
                "partition": p,
                "offset": (first or {}).get(p, 0) + n,
                "timestamp": _TIME,
            }
            for p, found in records.items()
            for n, (key, value) in enumerate(found)
        ]
        self.batches += 1
        rows_folder = self.folder / "rows"
        rows_folder.mkdir(exist_ok=True)
        path = rows_folder / f"{self.batches:04}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
        os.utime(path, (self.batches, self.batches))  # a stream of files takes the oldest first
        return path

    def rows(self, table: str = "orders") -> dict[int, str | None]:
        """The current rows: id → status."""
        found = self.client.rows(f"SELECT id, status FROM {self.database}.{table} FINAL WHERE NOT _is_deleted")
        return {int(r["id"]): r["status"] for r in found}

    def count(self) -> int:
        """Rows that were stored, outdated ones included."""
        return int(next(iter(self.client.rows(f"SELECT count() AS n FROM {self.database}.orders")))["n"])


@pytest.fixture(params=["spark", pytest.param("connect", marks=pytest.mark.long)])
def session(request: pytest.FixtureRequest) -> Any:
    """Classic Spark; in the long run Spark Connect as well."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def shelf(tmp_path: Path, client: Client, clickhouse: EmbeddedClickHouse, database: str) -> Shelf:
    client.command(TABLE.format(place=f"{database}.orders"))
    client.command(f"SYSTEM STOP MERGES {database}.orders")  # so that its rows say what was stored
    return Shelf(tmp_path, client, clickhouse.url, database)
