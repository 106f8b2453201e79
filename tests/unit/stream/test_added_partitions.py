"""Partitions that a topic gets later: which changes are read first where keys may have moved to them."""

from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from tests.support.hand import Event, mysql
from tests.support.memory_fed import MemoryFed

BY_OFFSET = policy_of(version_strategy="kafka_offset")
ENGINES = ("replacing", "sign", "versioned", "append")


def change(op: str, key: int, big: str, at: int) -> Event:
    return mysql(op, {"id": key}, None, {"id": key, "big": big}, at)


def moved(engine: str = "replacing", partitions: int = 1, policy: Any = BY_OFFSET) -> MemoryFed:
    """Key 1 has many changes in partition 0; half of them are unread when its next one goes to a new partition."""
    fed = MemoryFed(engine, partitions=partitions, policy=policy)
    fed.send(0, *(change("u", 1, f"old{i}", 100 + i) for i in range(6)))
    fed.poll(3)
    assert fed.read[0] == 3
    fed.send(partitions, change("u", 1, "new", 900))
    return fed


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dies", [False, True])
def test_former_partitions_are_read_to_their_ends_first(engine: str, dies: bool) -> None:
    fed = moved(engine)
    read: list[dict[int, tuple[int, int]]] = []
    for _ in range(9):
        read.append(fed.poll(1))
        if dies and read[-1]:
            fed.runner.kill()
    assert [r for r in read if r] == [{0: (3, 4)}, {0: (4, 5)}, {0: (5, 6)}, {1: (0, 1)}]
    assert fed.view() == {1: "new"}


def test_a_job_that_reads_once_reads_the_new_partitions_too() -> None:
    fed = moved()
    ceiling = dict(fed.topic.ends)
    assert [fed.poll(ceiling=ceiling) for _ in range(3)] == [{0: (3, 6)}, {1: (0, 1)}, {}]
    assert fed.view() == {1: "new"}


def test_a_producer_that_has_not_heard_of_the_new_partitions_is_waited_for() -> None:
    fed = MemoryFed(partitions=1, policy=BY_OFFSET)
    fed.feed(0, *(change("u", 1, f"old{i}", 100 + i) for i in range(3)))
    fed.send(1)
    for _ in range(3):
        fed.poll()
    fed.send(0, change("u", 1, "late", 300))
    fed.poll()
    fed.send(1, change("u", 1, "new", 900))
    for _ in range(3):
        fed.poll()
    assert fed.view() == {1: "new"}


def test_what_is_read_behind_the_switch_counts_as_new() -> None:
    """A key that stays in its partition goes on there."""
    fed = moved()
    for _ in range(4):
        fed.poll()
    fed.send(0, change("u", 3, "stays", 1000))
    fed.send(1, change("d", 1, "new", 1100))
    fed.poll()
    assert fed.view() == {3: "stays"}


@pytest.mark.parametrize(
    ("engine", "policy"), [("replacing", BY_OFFSET), ("collapsing", policy_of())], ids=["offsets", "stored rows"]
)
def test_keys_that_move_between_the_former_partitions_stop_a_stream_that_lags(engine: str, policy: Any) -> None:
    fed = moved(engine, partitions=2, policy=policy)
    with pytest.raises(StreamFailed, match=r"has 3 partitions instead of 2.*3 of partition 0") as stopped:
        fed.poll()
    assert "multiply their number" in (stopped.value.hint or "")
    fed.runner.kill()
    with pytest.raises(StreamFailed, match="instead of 2"):
        fed.poll()


def test_a_stream_that_has_caught_up_goes_on() -> None:
    fed = MemoryFed(partitions=2, policy=BY_OFFSET)
    fed.send(0, change("u", 1, "old", 100))
    fed.poll()
    fed.send(2)
    fed.poll()
    fed.send(2, change("u", 1, "new", 900))
    fed.poll()
    assert fed.view() == {1: "new"}


def test_positions_order_changes_across_partitions() -> None:
    fed = moved(partitions=2, policy=policy_of())
    assert fed.poll() == {0: (3, 6), 2: (0, 1)}
    assert fed.view() == {1: "new"}


def test_a_stream_that_has_read_nothing_yet_reads_the_former_partitions_first() -> None:
    fed = MemoryFed(partitions=1, policy=BY_OFFSET)
    fed.poll()
    fed.send(0, *(change("u", 1, f"old{i}", 100 + i) for i in range(6)))
    fed.send(1, change("u", 1, "new", 900))
    for _ in range(4):
        fed.poll()
    assert fed.view() == {1: "new"}


def test_what_orders_changes_that_nobody_has_seen_stops_no_stream() -> None:
    fed = MemoryFed(partitions=2)
    fed.poll()
    fed.send(0, change("u", 1, "old", 100))
    fed.send(2, change("u", 1, "new", 900))
    fed.poll()
    assert fed.view() == {1: "new"}
