"""What every Pending implementation keeps."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHousePending, Client
from ch_sink.memory import MemoryPending
from ch_sink.ports import AppliedSwap, PendingRecord


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
