"""Rows that change their place more than once in a chunk, which is killed between its inserts."""

import pytest

from ch_sink.testing import Killed
from tests.support.hand import Make, each_engine, insert, key, postgres, row

pytestmark = pytest.mark.integration


@each_engine
@pytest.mark.parametrize("after", [1, 2])
def test_no_place_keeps_a_row_that_has_left_it(make: Make, engine: str, after: int) -> None:
    """Row 2 leaves partition 2 first, so that row 1 leaves it in the first insert, and partition 1 in the next one."""
    fed = make(engine, more="p Int32", order="p, id", tail="PARTITION BY p")
    fed.feed([insert(1, "a", 100, p=1), insert(2, "b", 110, p=2)])
    start = fed.states[0]
    events = [
        postgres("u", key(2), None, row(2, "b", p=3), 10**15, 10**15),
        postgres("u", key(1), None, row(1, "c", p=2), 10**15, 10**15 + 1),
        postgres("u", key(1), None, row(1, "d", p=3), 10**15, 10**15 + 2),
    ]
    fed.kill_after = after
    with pytest.raises(Killed):
        fed.feed(events)
    fed.again(0, 2, 5, start)
    assert fed.view() == [(1, "d", 3), (2, "b", 3)]
