"""A read limit is shared fairly, spent fully where it can be, and never exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.stream.offset_ranges import plan_ranges


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
