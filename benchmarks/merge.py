"""``python -m benchmarks merge``: the cost of planning after decoding: order, resolution, merge, grouping.

One chunk of PostgreSQL or MySQL changes, decoded beforehand, is planned repeatedly; stored rows come from memory,
so that the figures are the product's own. One query per chunk at most, whatever the share of rows that need it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.machine import describe
from ch_sink.decode import Decoder
from ch_sink.decode.key_layouts import KeyForm
from ch_sink.memory import MemoryHandover
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import TopicProfile, policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import History, StoredRows
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column

PLACEHOLDER = "__debezium_unavailable_value"
SOURCE = (
    Column("id", "Int64"),
    Column("place", "Int32"),
    Column("n", "Nullable(Int32)"),
    Column("note", "Nullable(String)"),
)
ENGINES = {
    "replacing": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    "collapsing": Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="_sign"),
    "versioned": Engine(Family.VERSIONED_COLLAPSING, "VersionedCollapsingMergeTree", "_version", "_sign"),
}


@dataclass(frozen=True, slots=True)
class Work:
    """A scenario: shares of the chunk's events, in percent."""

    name: str
    engine: str = "replacing"
    connector: str = "mysql"
    by_place: bool = False
    """``place`` is in ORDER BY, outside the key."""
    moves: int = 0
    unavailable: int = 0
    key_changes: int = 0


WORKS = (
    Work("updates, whole images"),
    Work("place in ORDER BY, no row moves", by_place=True),
    Work("place in ORDER BY, 10 % of rows move", by_place=True, moves=10),
    Work("PostgreSQL, whole images", connector="postgresql"),
    Work("PostgreSQL, 1 % unavailable values", connector="postgresql", unavailable=1),
    Work("PostgreSQL, 20 % unavailable values", connector="postgresql", unavailable=20),
    Work("PostgreSQL, 5 % key changes", connector="postgresql", key_changes=5),
    Work("PostgreSQL, place in ORDER BY", connector="postgresql", by_place=True),
    Work("collapsing", engine="collapsing"),
    Work("versioned collapsing", engine="versioned"),
)


class Given:
    """Returns a batch that was decoded beforehand."""

    def __init__(self, batch: ChangeBatch) -> None:
        self.batch = batch

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        return TopicProfile(key_columns=("id",))

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        return self.batch

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        del keys
        return []


class Stored:
    """Stored rows of every id; counts the queries and keys."""

    def __init__(self, target: Target, count: int) -> None:
        ids = np.arange(count * 2, dtype=np.int64)
        rows = pa.table(
            {
                "id": ids,
                "place": pa.array(ids % 7, pa.int32()),
                "n": pa.array(ids % 100, pa.int32()),
                "note": pa.array([b"stored"] * len(ids), pa.binary()),
            }
        )
        for name in (c.name for c in target.table.columns[len(SOURCE) :]):
            if name == "_version":
                rows = rows.append_column(name, pa.array([bytes(16)] * len(ids), pa.binary(16)))
            else:
                kind, value = (pa.int8(), 1) if name == "_sign" else (pa.uint8(), 0)
                rows = rows.append_column(name, pa.array(np.full(len(ids), value), kind))
        self.rows, self.queries, self.keys = rows, 0, 0

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        self.queries += 1
        self.keys += keys.num_rows
        return StoredRows(self.rows.take(keys.column("id")))


def records_of(work: Work, count: int) -> Records:
    """Updates of ``count`` rows, each of its own key."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[list[tuple[str, bytes | None]] | None] = []
    for i in range(count):
        row: dict[str, Any] = {"id": i, "place": i % 7, "n": i % 90, "note": "a note of ordinary length, as they are"}
        old = dict(row) if work.connector == "mysql" else None
        if i % 100 < work.moves:
            row["place"] += 1
        if i % 100 < work.unavailable:
            row["note"] = PLACEHOLDER
        source: dict[str, Any] = {
            "connector": work.connector,
            "name": "s",
            "ts_ms": 1_795_000_000_000,
            "snapshot": "false",
        }
        if work.connector == "mysql":
            source |= {"file": "binlog.000003", "pos": 4000 + i * 300, "row": 0}
        else:
            source |= {"lsn": 10**9 + i * 300, "sequence": f'["{10**9 + i * 300}","{10**9 + i * 300}"]'}
        if 50 <= i % 100 < 50 + work.key_changes:
            new = {**row, "id": count + i, "note": PLACEHOLDER}
            for op, key, image, header in (("d", i, None, "new"), ("c", count + i, new, "old")):
                keys.append(json.dumps({"id": key}).encode())
                values.append(json.dumps({"before": old, "after": image, "source": source, "op": op}).encode())
                headers.append([(f"__debezium.{header}key", b'{"id":1}')])
            continue
        keys.append(json.dumps({"id": i}).encode())
        values.append(json.dumps({"before": old, "after": row, "source": source, "op": "u"}).encode())
        headers.append(None)
    offsets = np.arange(len(values), dtype=np.int64)
    return Records("t", 0, offsets, offsets, keys, values, headers if work.key_changes else None)


def measure(work: Work, count: int, repeat: int) -> tuple[list[float], int, int]:
    """Events per second of each repeat, queries and keys looked up per chunk."""
    engine = ENGINES[work.engine]
    own = [Column("_version", "UInt128")]
    own += [Column("_sign", "Int8")] if engine.sign_column else [Column("_is_deleted", "UInt8")]
    order = ("id", "place") if work.by_place else ("id",)
    table = TargetTable(
        "d", "t", engine, (*SOURCE, *own), sorting_key=order, partition_key="id % 8", place_columns=frozenset(order)
    )
    target = Target.of(table, policy_of())
    records = records_of(work, count)
    batch = Decoder(table, policy_of(), want_before=target.wants_before(("id",))).decode(records)
    speeds, stored = [], Stored(target, count)
    types = {f.name: f.type for f in batch.after.schema}
    for _ in range(repeat):
        stored.queries = stored.keys = 0
        began = time.perf_counter()
        made = plan(records, target, Given(batch), State(), Ports(stored, MemoryHandover(types)))
        speeds.append(len(batch) / (time.perf_counter() - began))
        if made.bad or not made.inserts:
            raise SystemExit(f"{work.name}: nothing was planned, or {len(made.bad)} bad records")
    return speeds, stored.queries, stored.keys


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks merge")
    parser.add_argument("--events", type=int, default=50_000, help="events of the chunk")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print(f"\nplan of a chunk of {given.events:,} events: thousand events/s, median (lowest to highest)")
    for work in WORKS:
        speeds, queries, keys = measure(work, given.events, given.repeat)
        low, middle, high = min(speeds) / 1000, statistics.median(speeds) / 1000, max(speeds) / 1000
        print(f"  {work.name:40}{middle:8.0f} ({low:.0f} to {high:.0f})   {queries} lookup of {keys:,} keys")
    return 0
