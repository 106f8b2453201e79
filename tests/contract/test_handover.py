"""What every Handover implementation keeps."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.clickhouse import ClickHouseHandover, ClickHousePending, Client
from ch_sink.memory import MemoryHandover, MemoryPending
from ch_sink.model.change import HandoverId
from ch_sink.ports import AppliedSwap, PendingRecord
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column

TYPES = {
    "id": ("UInt64", pa.uint64()),
    "text": ("Nullable(String)", pa.binary()),
    "amount": ("Decimal(76, 10)", pa.decimal256(76, 10)),
    "at": ("DateTime64(6, 'UTC')", pa.timestamp("us", tz="UTC")),
    "tags": ("Array(Nullable(String))", pa.list_(pa.binary())),
    "wide": ("Int256", pa.binary(32)),
}


def target(names: tuple[str, ...] = tuple(TYPES)) -> TargetTable:
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", None, "_is_deleted")
    columns = [Column(n, TYPES[n][0]) for n in names]
    return TargetTable("d", "t", engine, (*columns, Column("_version", "UInt128"), Column("_is_deleted", "UInt8")))


@pytest.fixture(params=["memory", "clickhouse"])
def handover(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return MemoryHandover({n: kind for n, (_, kind) in TYPES.items()})
    client: Client = request.getfixturevalue("client")
    return ClickHouseHandover(
        client, request.getfixturevalue("own_tables"), "handover", request.getfixturevalue("stream"), target()
    )


def rows(*texts: bytes | None) -> pa.Table:
    n = len(texts)
    values: dict[str, list[Any]] = {
        "id": [(1 << 64) - 1 - i for i in range(n)],
        "text": list(texts),
        "amount": [Decimal("-12345678901234567890123456789012345678901234567890.0123456789")] * n,
        "at": [-1_234_567_890_123_456] * n,
        "tags": [[b"\xff", None]] * n,
        "wide": [bytes(range(32))] * n,
    }
    return pa.table({name: pa.array(values[name], kind) for name, (_, kind) in TYPES.items()})


def ident(n: int, source: str = "shop") -> HandoverId:
    return HandoverId(source, 65535, (1 << 64) - 1, n, (1 << 64) - 2)


def all_known(n: int) -> Any:
    return np.ones(n, dtype=np.bool_)


def test_rows_come_back_exact(handover: Any) -> None:
    put = rows(b"\x00\xff", None, "grün".encode())
    handover.put([ident(0), ident(1), ident(2)], put, all_known(3), "t")
    got = handover.get([ident(2), ident(0), ident(1), ident(9)])
    assert set(got.found) == {ident(0), ident(1), ident(2)}
    assert got.rows.schema.equals(put.schema)
    for n in range(3):
        assert got.rows.slice(got.found[ident(n)], 1).to_pylist() == put.slice(n, 1).to_pylist()


def test_unknown_rows_are_found_as_unknown(handover: Any) -> None:
    handover.put([ident(0), ident(1)], rows(b"a", b"b"), np.array([False, True]), "t")
    got = handover.get([ident(0), ident(1)])
    assert got.found == {ident(0): -1, ident(1): 0}
    assert got.rows.column("text").to_pylist() == [b"b"]


def test_the_first_entry_stays(handover: Any) -> None:
    handover.put([ident(0)], rows(b"first"), all_known(1), "t")
    handover.put([ident(0), ident(1)], rows(b"second", b"new"), all_known(2), "u")
    handover.put([ident(0)], rows(b"third"), np.array([False]), "t")
    got = handover.get([ident(0), ident(1)])
    assert got.rows.take([got.found[ident(0)], got.found[ident(1)]]).column("text").to_pylist() == [b"first", b"new"]


def test_sources_and_positions_tell_entries_apart(handover: Any) -> None:
    handover.put([ident(0, "a"), ident(0, "b")], rows(b"a", b"b"), all_known(2), "t")
    got = handover.get([ident(0, "b")])
    assert list(got.found) == [ident(0, "b")]
    assert got.rows.column("text").to_pylist() == [b"b"]
    assert handover.get([ident(1, "a")]).found == {}


def test_nothing_asked_is_nothing_found(handover: Any) -> None:
    got = handover.get([])
    assert got.found == {}
    assert got.rows.num_rows == 0
    assert got.rows.column_names == list(TYPES)
    handover.put([], rows(), all_known(0), "t")


def test_entries_outlive_a_change_of_the_target(client: Client, own_tables: str, stream: str) -> None:
    old = ClickHouseHandover(client, own_tables, "handover", stream, target(("id", "text", "wide")))
    old.put([ident(0)], rows(b"x").select(["id", "text", "wide"]), all_known(1), "t")
    new = ClickHouseHandover(client, own_tables, "handover", stream, target(("text", "amount", "id")))
    got = new.get([ident(0)])
    assert got.rows.to_pylist() == [{"text": b"x", "amount": None, "id": (1 << 64) - 1}]


@pytest.fixture(params=["memory", "clickhouse"])
def pending(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return MemoryPending()
    client: Client = request.getfixturevalue("client")
    return ClickHousePending(
        client, request.getfixturevalue("own_tables"), "pending", request.getfixturevalue("stream")
    )


def record(offset: int, **changes: Any) -> PendingRecord:
    base: dict[str, Any] = {
        "timestamp": 1_700_000_000_123,
        "key": b"\xff\x00",
        "value": b"{\x80}",
        "headers": (("__debezium.oldkey", b"\xff"), ("none", None)),
        "epoch": 65535,
        "commit": (1 << 80) - 1,
        "since": 1_700_000_000.125,
    }
    return PendingRecord(offset, **{**base, **changes})


def test_records_come_back_whole_and_by_offset(pending: Any) -> None:
    bare = record(3, key=None, value=None, headers=(), commit=0, epoch=0)
    pending.put("t1", 0, [record(9), bare], "x")
    assert pending.open("t1", 0) == [bare, record(9)]


def test_partitions_and_topics_are_apart(pending: Any) -> None:
    pending.put("t1", 0, [record(1)], "x")
    assert pending.open("t1", 1) == []
    assert pending.open("t2", 0) == []


def test_a_repeat_of_an_offset_is_stored_once(pending: Any) -> None:
    pending.put("t1", 0, [record(1)], "x")
    pending.put("t1", 0, [record(1), record(2)], "x")
    assert pending.open("t1", 0) == [record(1), record(2)]


def test_resolved_records_are_gone(pending: Any) -> None:
    pending.put("t1", 0, [record(1), record(2)], "x")
    pending.put("t1", 1, [record(1)], "x")
    pending.resolve("t1", 0, [1, 77])
    pending.resolve("t1", 0, [])
    assert pending.open("t1", 0) == [record(2)]
    assert pending.open("t1", 1) == [record(1)]


def test_a_record_put_again_under_the_same_token_waits_again(pending: Any) -> None:
    pending.put("t1", 0, [record(1)], "same token")
    pending.resolve("t1", 0, [1])
    pending.put("t1", 0, [record(1)], "same token")
    assert pending.open("t1", 0) == [record(1)]


def test_released_records_are_known_until_they_wait_again(pending: Any) -> None:
    pending.put("t1", 0, [record(o) for o in (1, 2, 3, 5)], "x")
    pending.put("t1", 1, [record(1)], "x")
    assert pending.released("t1", 0, 0, 10) == []
    pending.resolve("t1", 0, [1, 2, 5, 9])
    assert pending.released("t1", 0, 0, 10) == [1, 2, 5]
    assert pending.released("t1", 0, 2, 5) == [2]
    assert pending.released("t1", 1, 0, 10) == []
    pending.put("t1", 0, [record(2)], "x")
    assert pending.released("t1", 0, 0, 10) == [1, 5]


def test_a_swap_that_an_applied_record_opened_stays_until_it_is_resolved(pending: Any) -> None:
    """The record does not wait any more, but says whose row is still to leave its key."""
    open_swap = replace(record(1), value=None, headers=(), swap=AppliedSwap((1 << 128) - 1))
    closed = replace(record(2), value=None, headers=(), swap=AppliedSwap(0, 17))
    pending.put("t1", 0, [record(o) for o in (1, 2, 3)], "x")
    pending.put("t1", 0, [open_swap, closed], "y")
    assert pending.open("t1", 0) == [open_swap, closed, record(3)]
    assert pending.released("t1", 0, 0, 10) == [1, 2]
    pending.resolve("t1", 0, [1, 3])
    assert pending.open("t1", 0) == [closed]
    pending.put("t1", 0, [record(2)], "z")
    assert pending.open("t1", 0) == [record(2)]
    assert pending.released("t1", 0, 0, 10) == [1, 3]


def test_places_of_which_anything_is_left(pending: Any) -> None:
    for topic_id, partition in (("t1", 0), ("t2", 3), ("t2", 1), ("t3", 0), ("t4", 0)):
        pending.put(topic_id, partition, [record(1), record(2)], "x")
    pending.resolve("t3", 0, [1, 2])
    pending.resolve("t4", 0, [2])
    pending.put("t4", 0, [replace(record(1), value=None, headers=(), swap=AppliedSwap(5))], "y")
    left = pending.places()
    assert list(left.items()) == [(("t1", 0), 2), (("t2", 1), 2), (("t2", 3), 2), (("t4", 0), 0)]
    assert all(pending.open(*place) for place in left)
