"""A second job, or a second execution of a task, while the first one is frozen between a check and its insert."""

from collections.abc import Callable, Sequence

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import LedgerConflict
from ch_sink.testing import LocalRunner
from tests.support.hand import Event
from tests.support.hand_tables import delete, insert, row, update
from tests.support.takeover import Freezing, Takeover

pytestmark = pytest.mark.integration

PLACED = {"more": "p Int32", "tail": "PARTITION BY p"}
EVENTS: Sequence[Event] = (
    insert(1, "a", 100, p=1),
    insert(2, "x", 110, p=1),
    insert(3, "gone", 120, p=1),
    update(row(1, "a", p=1), row(1, "b", p=2), 130),
    delete(row(3, "gone", p=1), 140),
    update(row(2, "x", p=1), row(2, "y", p=1), 150),
    update(row(1, "b", p=2), row(1, "c", p=2), 160),
    insert(4, "new", 170, p=1),
)
CURRENT = [(1, "c", 2), (2, "y", 1), (4, "new", 1)]
POINTS = [
    *(
        (engine, nth, after)
        for engine in ("collapsing", "versioned")
        for nth, after in ((1, False), (4, False), (4, True))
    ),
    *((engine, 2, False) for engine in ("append", "replacing", "sign")),
]
"""Where the first execution is frozen. The 4th insert takes row 1 from its old place, the 3rd one put it at its new."""

each_point = pytest.mark.parametrize(
    ("engine", "nth", "after"), POINTS, ids=[f"{e} {'after' if a else 'before'} {n}" for e, n, a in POINTS]
)
Make = Callable[[str], Takeover]


@pytest.fixture
def make(client: Client, database: str, own_tables: str) -> Make:
    return lambda engine: Takeover(client, database, own_tables, engine, {0: EVENTS}, **PLACED)


def right(made: Takeover) -> None:
    if made.engine == "append":
        assert made.stored() == len(EVENTS)
        return
    assert made.view() == CURRENT
    if made.engine in ("collapsing", "versioned"):
        assert made.sums() <= {0, 1}
        assert made.unpaired() == 0


@each_point
def test_a_second_job_takes_over_in_mid_batch(make: Make, engine: str, nth: int, after: bool) -> None:
    made = make(engine)
    second = made.job()

    def meanwhile() -> None:
        made.elsewhere(first)
        assert made.run_all(second) is None

    first: LocalRunner = made.job(lambda inner: Freezing(inner, meanwhile, nth, after))
    error = made.run_all(first)
    assert isinstance(error, LedgerConflict)
    assert second.coordinator.run_id in str(error)
    right(made)
    second.stop()


@each_point
def test_a_task_that_spark_runs_again_while_the_first_execution_is_frozen(
    make: Make, engine: str, nth: int, after: bool
) -> None:
    made = make(engine)
    again, frozen = made.run_twice(nth, after=after)
    assert again.failure is None
    if engine in ("collapsing", "versioned", "append") and not after:
        assert isinstance(frozen.failure, LedgerConflict)
    right(made)
