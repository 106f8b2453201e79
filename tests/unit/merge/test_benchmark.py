"""The benchmark of planning runs: every scenario plans its events, with one query at most."""

import pytest

from benchmarks.merge import WORKS, Work, measure


@pytest.mark.parametrize("work", WORKS, ids=lambda w: w.name)
def test_every_scenario_is_planned(work: Work) -> None:
    speeds, queries, keys = measure(work, 300, 1)
    assert len(speeds) == 1
    assert queries <= 1
    assert (queries == 0) == (keys == 0)
