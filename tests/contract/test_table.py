"""What a target table's writer and lookup keep: in memory and in ClickHouse, for every engine family."""

from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import ClickHouseLookup, ClickHouseWriter, Client, detect
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.memory_table import MemoryTable

SOURCE = {"region": "LowCardinality(String)", "id": "Nullable(Int64)", "text": "Nullable(String)", "n": "Float64"}
SYSTEM = {"version": "UInt128", "gone": "UInt8", "sign": "Int8"}
ENGINES = {
    Family.REPLACING: ("ReplacingMergeTree(version, gone)", ("version", "gone")),
    Family.COLLAPSING: ("CollapsingMergeTree(sign)", ("sign",)),
    Family.VERSIONED_COLLAPSING: ("VersionedCollapsingMergeTree(sign, version)", ("sign", "version")),
}
ARROW = {
    "region": pa.binary(),
    "id": pa.int64(),
    "text": pa.binary(),
    "n": pa.float64(),
    "version": pa.binary(16),
    "gone": pa.uint8(),
    "sign": pa.int8(),
}


class Table:
    """Writer and lookup of one table, rows as dictionaries."""

    def __init__(self, writer: Any, lookup: Any, system: tuple[str, ...]) -> None:
        self.writer, self.lookup, self.system = writer, lookup, system
        self._count = 0

    def insert(self, *rows: dict[str, Any], token: str | None = None) -> None:
        names = [*SOURCE, *self.system]
        self._count += 1
        block = pa.table({n: pa.array([_wire(n, r) for r in rows], ARROW[n]) for n in names})
        self.writer.write(Insert(block, "p"), token or f"token-{self._count}")

    def fetch(self, *keys: tuple[str, int | None]) -> list[dict[str, Any]]:
        asked = pa.table(
            {
                "region": pa.array([k[0].encode() for k in keys], pa.binary()),
                "id": pa.array([k[1] for k in keys], pa.int64()),
            }
        )
        found = self.lookup.fetch(asked).rows
        rows = [{n: _read(n, v) for n, v in row.items()} for row in found.to_pylist()]
        return sorted(rows, key=lambda r: (r["region"], r["id"] is None, r["id"] or 0, str(r["text"]), r["n"]))


def _wire(name: str, row: dict[str, Any]) -> Any:
    value = row.get(name, 1.5 if name == "n" else None)
    if name == "version":
        return int(value or 0).to_bytes(16, "little")
    if name in ("gone", "sign"):
        return value if value is not None else (1 if name == "sign" else 0)
    return value.encode() if isinstance(value, str) else value


def _read(name: str, value: Any) -> Any:
    if name == "version":
        return int.from_bytes(value, "little")
    return value.decode() if isinstance(value, bytes) else value


def make(request: pytest.FixtureRequest, where: str, family: Family) -> Table:
    engine, system = ENGINES[family]
    keys = ("region", "id")
    if where == "memory":
        facts = Engine(
            family,
            family.value,
            "version" if "version" in system else None,
            "sign" if "sign" in system else None,
            "gone" if "gone" in system else None,
        )
        columns = {**SOURCE, **{n: SYSTEM[n] for n in system}}
        target = TargetTable("d", "t", facts, tuple(Column(n, kind) for n, kind in columns.items()))
        table = MemoryTable(target, keys)
        return Table(table, table, system)
    client: Client = request.getfixturevalue("client")
    database = request.getfixturevalue("database")
    columns_sql = ", ".join(f"{n} {kind}" for n, kind in {**SOURCE, **{n: SYSTEM[n] for n in system}}.items())
    client.command(
        f"CREATE TABLE {database}.t ({columns_sql}) ENGINE = {engine} PARTITION BY region ORDER BY (id, region) "
        "SETTINGS non_replicated_deduplication_window = 1000, allow_nullable_key = 1"
    )
    client.command(f"SYSTEM STOP MERGES {database}.t")
    target = detect(client, database, "t", policy_of())
    return Table(ClickHouseWriter(client, target), ClickHouseLookup(client, target, keys), system)


@pytest.fixture(params=["memory", "clickhouse"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def replacing(request: pytest.FixtureRequest, where: str) -> Table:
    return make(request, where, Family.REPLACING)


@pytest.fixture(params=[Family.COLLAPSING, Family.VERSIONED_COLLAPSING])
def collapsing(request: pytest.FixtureRequest, where: str) -> Table:
    return make(request, where, request.param)


def row(region: str, key: int | None, text: str | None, **more: Any) -> dict[str, Any]:
    return {"region": region, "id": key, "text": text, **more}


def test_an_empty_table_has_no_rows(replacing: Table) -> None:
    assert replacing.fetch(("a", 1)) == []


def test_only_the_keys_asked_for_come_back(replacing: Table) -> None:
    replacing.insert(row("a", 1, "x"), row("a", 2, "y"), row("b", 1, "z"))
    assert [(r["region"], r["id"], r["text"]) for r in replacing.fetch(("a", 2), ("b", 1), ("b", 2))] == [
        ("a", 2, "y"),
        ("b", 1, "z"),
    ]


def test_the_newest_version_comes_back_with_its_nulls_and_system_columns(replacing: Table) -> None:
    top = (1 << 127) + 5
    replacing.insert(row("a", 1, "old", version=top - 1, n=1.0))
    replacing.insert(row("a", 1, None, version=top, n=2.0))
    replacing.insert(row("a", 1, "older", version=7, n=3.0))
    assert replacing.fetch(("a", 1)) == [row("a", 1, None, version=top, n=2.0, gone=0)]


def test_deleted_rows_come_back_too(replacing: Table) -> None:
    replacing.insert(row("a", 1, "x", version=1))
    replacing.insert(row("a", 1, None, version=2, gone=1))
    assert replacing.fetch(("a", 1)) == [row("a", 1, None, version=2, gone=1, n=1.5)]


def test_among_equal_versions_the_last_inserted_row_comes_back(replacing: Table) -> None:
    for text in ("first", "second", "third"):
        replacing.insert(row("a", 1, text, version=9))
    assert [r["text"] for r in replacing.fetch(("a", 1))] == ["third"]


def test_null_is_a_key_like_any_other(replacing: Table) -> None:
    replacing.insert(row("a", None, "null key"), row("a", 0, "zero"))
    assert [r["text"] for r in replacing.fetch(("a", None))] == ["null key"]


def test_a_repeated_token_stores_nothing(replacing: Table) -> None:
    replacing.insert(row("a", 1, "x", version=1), token="same")
    replacing.insert(row("a", 1, "y", version=2), token="same")
    assert [r["text"] for r in replacing.fetch(("a", 1))] == ["x"]


def test_rows_with_a_positive_sum_come_back_as_often_as_it_says(collapsing: Table) -> None:
    collapsing.insert(row("a", 1, "x", version=1), row("a", 2, None, version=1))
    collapsing.insert(row("a", 2, None, version=1))
    found = collapsing.fetch(("a", 1), ("a", 2))
    assert [(r["id"], r["text"], r["sign"]) for r in found] == [(1, "x", 1), (2, None, 1), (2, None, 1)]


def test_cancelled_rows_are_not_there(collapsing: Table) -> None:
    collapsing.insert(row("a", 1, "x", version=1))
    collapsing.insert(row("a", 1, "x", version=1, sign=-1), row("a", 1, "y", version=2))
    assert [(r["text"], r["sign"]) for r in collapsing.fetch(("a", 1))] == [("y", 1)]
    collapsing.insert(row("a", 1, "y", version=2, sign=-1))
    assert collapsing.fetch(("a", 1)) == []


@pytest.mark.sampled(2)
def test_different_rows_of_one_key_all_come_back(collapsing: Table) -> None:
    collapsing.insert(row("a", 1, "x"))
    collapsing.insert(row("a", 1, "y"))
    assert [r["text"] for r in collapsing.fetch(("a", 1))] == ["x", "y"]
