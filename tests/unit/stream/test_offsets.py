"""Which offsets are read next, and which of added partitions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.stream.batch_plan import plan_ranges
from tests.support.hand import Event, mysql
from tests.support.memory_fed import MemoryFed


@pytest.mark.parametrize(
    ("start", "latest", "limit", "chunk", "ends"),
    [
        ({0: 5, 1: 7}, {0: 5, 1: 7}, 100, 10, {0: 5, 1: 7}),
        ({0: 0, 1: 0}, {0: 90, 1: 90}, None, 50, {0: 90, 1: 90}),
        # Equal shares; what the small one leaves goes to the others.
        ({0: 0, 1: 0, 2: 0}, {0: 1000, 1: 10, 2: 1000}, 300, 1, {0: 145, 1: 10, 2: 145}),
        # Short of the latest: back to a multiple of the chunk, unless nothing would be left.
        ({0: 20, 1: 20}, {0: 1000, 1: 1000}, 200, 50, {0: 100, 1: 100}),
        ({0: 20, 1: 48}, {0: 1000, 1: 1000}, 40, 50, {0: 40, 1: 50}),
        # A limit below the number of partitions still moves one.
        ({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 1, 50_000, {0: 1, 1: 0, 2: 0}),
    ],
)
def test_shares(
    start: dict[int, int], latest: dict[int, int], limit: int | None, chunk: int, ends: dict[int, int]
) -> None:
    assert plan_ranges(start, latest, limit, chunk) == ends


_topics = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=8)


@given(_topics, st.integers(1, 2000), st.integers(1, 200))
def test_within_the_limit_and_always_moving(topic: dict[int, tuple[int, int]], limit: int, chunk: int) -> None:
    start = {partition: low for partition, (low, _) in topic.items()}
    latest = {partition: low + lag for partition, (low, lag) in topic.items()}
    for _ in range(5000):
        ends = plan_ranges(start, latest, limit, chunk)
        assert ends.keys() == latest.keys()
        assert all(start[partition] <= ends[partition] <= latest[partition] for partition in ends)
        moved = sum(ends.values()) - sum(start.values())
        assert moved <= limit
        if start == latest:
            assert moved == 0
            return
        assert moved > 0
        start = ends
    pytest.fail("the lag was never worked off")


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


def test_keys_that_move_between_the_former_partitions_stop_a_stream_that_lags() -> None:
    fed = moved(partitions=2)
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
