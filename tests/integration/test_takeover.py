"""A second job, or a second execution of a task, while the first one is frozen between a check and its insert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import LedgerConflict
from tests.support.choose import some
from tests.support.hand import PLACEHOLDER, Event, delete, insert, key_change, postgres, row, update
from tests.support.hand_commands import each_of
from tests.support.local_runner import LocalRunner
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
    ("engine", "nth", "after"),
    some(POINTS, [("versioned", 4, True), ("append", 2, False)]),
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


@pytest.mark.sampled(1)
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


@pytest.mark.long
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


@dataclass
class FreezingPending:
    """Waiting changes of a process that is frozen before it stores the first of them."""

    inner: Any
    meanwhile: Callable[[], None]
    woken: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, *given: Any, **named: Any) -> None:
        if not self.woken:
            self.woken = True
            self.meanwhile()
        self.inner.put(*given, **named)


@pytest.mark.long
@each_of("engine", ["collapsing", "versioned", "append"], "collapsing", "append")
def test_a_change_that_a_frozen_job_lets_wait_after_it_was_applied_is_not_applied_again(
    client: Client, database: str, own_tables: str, engine: str
) -> None:
    """The second job has applied it and then deleted its row, which leaves nothing in a collapsing table."""
    left, _, taken = key_change(
        postgres("d", {"id": 1}, None, None, 200, 190),
        postgres("c", {"id": 2}, None, row(2, PLACEHOLDER), 200, 190),
    )
    first_rows = [taken, postgres("c", {"id": 9}, None, row(9, "i"), 205, 204)]
    then = [
        postgres("d", {"id": 2}, row(2, "a"), None, 210, 209),
        postgres("c", {"id": 8}, None, row(8, "h"), 215, 214),
    ]
    events = {0: [*first_rows, *then], 1: [postgres("c", {"id": 1}, None, row(1, "large"), 100, 90), left]}
    made = Takeover(client, database, own_tables, engine, events)
    second = made.job()

    def meanwhile() -> None:
        made.elsewhere(first)
        assert made.run_all(second) is None

    first = made.job()
    first.ports = replace(first.ports, pending=FreezingPending(first.ports.pending, meanwhile))
    assert isinstance(made.run_all(first), LedgerConflict)
    stored = made.stored()
    made.elsewhere(second)
    third = made.job()
    third.catch_up()
    assert made.view() == [(8, "h"), (9, "i")]
    assert made.stored() == stored
    third.stop()
