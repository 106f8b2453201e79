"""Small ranges of several partitions are stored by one insert; whatever else a chunk needs goes its own way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.errors import ClickHouseError, LedgerConflict
from ch_sink.model.change import BadRecord
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.plans import OpenedSwap, Plan, Waiting
from ch_sink.ports import Fence, Insert
from ch_sink.stream.run_task import Held, group_token, store_held
from ch_sink.stream.tasks import RangeDone, Task, TaskResult, tried
from ch_sink.table.rollup import RollupChoice
from tests.support import local_runner
from tests.support.hand import PLACEHOLDER, Event, key_change, mysql, postgres
from tests.support.kills import Fault, What
from tests.support.local_runner import LocalBatch
from tests.support.memory_fed import MemoryFed

ROLLED = {"rollups": (RollupChoice("by_big", (("big", "big"),), count="rows"),)}
BAD = Event({"id": 9}, {"op": "c", "source": {"connector": "mysql", "name": "my"}, "after": {"id": "no number"}})


def created(number: int) -> Event:
    return mysql("c", {"id": number}, None, {"id": number, "big": f"v{number}"}, 100 + number)


class Fed(MemoryFed):
    """A stream of five partitions; remembers the ids of each insert, and refuses some."""

    def __init__(self, engine: str = "replacing", **settings: Any) -> None:
        super().__init__(engine, partitions=5, **settings)
        self.sent: list[list[int]] = []
        self.tokens: list[str] = []
        self.refused: set[int] = set()
        self.runner.ports = replace(self.runner.ports, writer=lambda _: self)

    def roll_up(self, rollup: str, rows: pa.Table, token: str, *, fence: Fence | None = None) -> None:
        self.stream.table.roll_up(rollup, rows, token, fence=fence)

    def write(self, insert: Insert, token: str, *, fence: Fence | None = None, by_content: bool = False) -> int:
        ids = sorted(insert.rows.column("id").to_pylist())
        if self.refused & set(ids):
            raise ClickHouseError("a constraint of the table is violated", code=469)
        self.sent.append(ids)
        self.tokens.append(token)
        return self.stream.table.write(insert, token, fence=fence, by_content=by_content)

    def all(self, *kills: Fault, groups: int = 1) -> None:
        ranges = {p: (self.read[p], end) for p, end in self.topic.ends.items() if self.read[p] < end}
        self.read |= self.topic.ends
        self.runner.run([LocalBatch(ranges, kills=kills, groups=groups)])

    def stored(self) -> Counter[int]:
        return Counter(row["id"] for row in self.stream.table.rows)

    def last(self) -> dict[int, RangeDone]:
        return {done.partition: done for done in self.runner.results}


def test_an_execution_that_wakes_up_late_stores_nothing() -> None:
    """Spark has run its tasks again, the partitions have gone on, and changes that waited were released."""
    fed = Fed("collapsing")
    one_each(fed)
    woken: list[Sequence[Held]] = []

    def frozen(held: Sequence[Held]) -> None:
        woken.append(held)
        for one in held:
            again = fed.runner._finished(tried(one.task, 1))
            assert isinstance(again, RangeDone)
            one.done.end, one.done.state = again.end, again.state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_runner, "store_held", frozen)
        fed.all()
    for partition in range(5):
        fed.send(partition, mysql("d", {"id": partition}, {"id": partition, "big": f"v{partition}"}, None, 200))
    fed.all()
    for partition in range(5):
        fed.stream.ledger.begin("id", partition, woken[0][0].task.claim, "release")
    store_held(woken[0])
    assert all(isinstance(one.done.failure, LedgerConflict) for one in woken[0])
    assert fed.view() == {}


def test_an_execution_that_begins_late_stores_nothing_though_later_ones_are_not_registered() -> None:
    """Spark has run its tasks again before they began, and a later batch was stored together."""
    fed = Fed("collapsing")
    one_each(fed)
    frozen: list[Task] = []

    def again(tasks: Sequence[Task]) -> list[TaskResult]:
        frozen.extend(tasks)
        return [fed.runner._finished(tried(task, 1)) for task in tasks]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fed.runner, "_execute", again)
        fed.all()
    for partition in range(5):
        fed.send(partition, mysql("d", {"id": partition}, {"id": partition, "big": f"v{partition}"}, None, 200))
    fed.sent.clear()
    fed.all()
    assert fed.sent == [[0, 1, 2, 3, 4]]
    for task in frozen:
        late = fed.runner._finished(task)
        assert isinstance(late, RangeDone)
        assert isinstance(late.failure, LedgerConflict)
    assert fed.view() == {}


def one_each(fed: Fed, partitions: Sequence[int] = range(5)) -> None:
    for partition in partitions:
        fed.send(partition, created(partition))


def test_small_ranges_of_one_table_are_one_insert_and_each_has_its_own_result() -> None:
    fed = Fed()
    one_each(fed)
    fed.send(3, created(13))
    fed.all()
    assert fed.sent == [[0, 1, 2, 3, 4, 13]]
    done = fed.last()
    assert {p: (d.end, d.counts.rows, d.counts.kinds["upserts"]) for p, d in done.items()} == {
        p: (1 + (p == 3), 1 + (p == 3), 1 + (p == 3)) for p in range(5)
    }
    assert all(d.failure is None and d.settled and d.counts.top for d in done.values())
    assert len(fed.view()) == 6


@pytest.mark.parametrize(
    ("engine", "settings"),
    [("replacing", {"version": "DateTime64(3)"}), ("append", {"version": "DateTime64(3)"}), ("collapsing", ROLLED)],
)
def test_a_table_whose_second_attempts_rely_on_tokens_is_stored_partition_by_partition(
    engine: str, settings: dict[str, Any]
) -> None:
    fed = Fed(engine, **settings)
    one_each(fed)
    fed.all(Fault("before results"))
    assert fed.sent[:5] == [[0], [1], [2], [3], [4]]
    assert fed.stored() == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
def test_a_first_attempt_may_ask_what_is_stored_and_be_stored_with_others(engine: str) -> None:
    fed = Fed(engine)
    fed.feed(2, postgres("c", {"id": 2}, None, {"id": 2, "big": "long"}, 1, 1))
    fed.send(2, postgres("u", {"id": 2}, None, {"id": 2, "big": PLACEHOLDER}, 2, 2))
    for partition in (0, 1, 3):
        fed.send(partition, postgres("c", {"id": partition}, None, {"id": partition, "big": "v"}, 3, 3 + partition))
    fed.sent.clear()
    fed.all()
    assert [sorted(set(ids)) for ids in fed.sent] == [[0, 1, 2, 3]]
    assert fed.view() == {0: "v", 1: "v", 2: "long", 3: "v"}
    assert not fed.stream.ledger._book.executions, "none is registered"


def test_a_poison_record_neither_delays_nor_fails_its_neighbours() -> None:
    fed = Fed()
    one_each(fed, (0, 1, 3))
    fed.send(2, BAD, created(2))
    fed.all()
    assert sorted(fed.sent) == [[0, 1, 3], [2]]
    assert [stored.letter.partition for stored in fed.stream.dead_letters.list()] == [2]
    assert fed.view().keys() == {0, 1, 2, 3}


def test_a_partition_in_which_changes_wait_goes_its_own_way_and_is_executed_once() -> None:
    fed = Fed()
    fed.feed(1, postgres("c", {"id": 1}, None, {"id": 1, "big": "one"}, 100, 90))
    delete = postgres("d", {"id": 1}, None, None, 200, 190)
    halves = key_change(delete, postgres("c", {"id": 7}, None, {"id": 7, "big": PLACEHOLDER}, 200, 190))
    fed.send(0, halves[2])
    fed.send(2, postgres("c", {"id": 2}, None, {"id": 2, "big": "two"}, 200, 192))
    fed.all()
    assert fed.last()[0].waiting == 1
    fed.sent.clear()
    for partition, number in ((0, 10), (2, 12), (3, 13)):
        fed.send(partition, postgres("c", {"id": number}, None, {"id": number, "big": "v"}, 300, 290 + number))
    fed.all()
    assert sorted(fed.sent) == [[10], [12, 13]]
    assert not any(done.repeated for done in fed.runner.results)
    fed.feed(1, *halves[:2])
    fed.feed(0, postgres("c", {"id": 20}, None, {"id": 20, "big": "v"}, 400, 390))
    assert fed.view() == {20: "v", 2: "two", 7: "one", 10: "v", 12: "v", 13: "v"}


def test_if_the_insert_fails_no_member_is_done_and_each_is_tried_again_alone() -> None:
    fed = Fed()
    one_each(fed, (0, 1, 2))
    fed.refused = {1}
    with pytest.raises(ClickHouseError, match="constraint"):
        fed.all()
    assert {p: (d.start, d.end) for p, d in fed.last().items() if d.failure} == dict.fromkeys(range(3), (0, 0))
    assert not any(fed.stream.ledger.progress("id").values())
    fed.runner.stop()
    with pytest.raises(ClickHouseError, match="constraint"):
        fed.runner.catch_up()
    assert fed.sent == [[0], [2]], "the bad one fails alone"
    fed.refused = set()
    fed.runner.stop()
    fed.runner.catch_up()
    assert fed.stored() == {0: 1, 1: 1, 2: 1}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
@pytest.mark.parametrize("point", ["before lookup", "before insert", "after insert", "before results"])
@pytest.mark.parametrize("what", ["kill", "no answer", "twice", "second job", "second execution"])
def test_whatever_happens_around_the_insert_each_change_is_stored_once(point: str, what: What, engine: str) -> None:
    fed = Fed(engine)
    one_each(fed)
    fed.all(Fault(point, what=what))
    assert fed.stored() == dict.fromkeys(range(5), 1)
    assert len(fed.view()) == 5


def test_a_retry_may_be_grouped_otherwise() -> None:
    fed = Fed()
    one_each(fed)
    fed.all(Fault("after insert", 2), groups=3)
    assert fed.sent[:2] == [[0, 3], [1, 4]]
    assert fed.stored() == dict.fromkeys(range(5), 1)


def test_the_token_of_a_group_names_every_member_and_not_their_order() -> None:
    assert len({group_token(alone.split()) for alone in ("a b", "b a", "a", "a c", "a b c")}) == 4
    fed = Fed()
    one_each(fed)
    fed.all(groups=2)
    one_each(fed)
    fed.all(groups=2)
    assert len(set(fed.tokens)) == 4


PLAIN = Plan(State(), [Insert(pa.table({}), "rows/*")])


def test_a_plan_with_more_than_inserts_is_not_only_inserts() -> None:
    assert PLAIN.only_inserts
    more: dict[str, Any] = {
        "handover": object(),
        "pending": [Waiting(0, 0, 0)],
        "swaps": [OpenedSwap(0, 0)],
        "closers": {b"k": 0},
        "bad": [BadRecord(0, "")],
        "barrier": Barrier("truncate", 1),
        "inserts": [Insert(pa.table({}), "rows/*", partial=True)],
    }
    assert [name for name, value in more.items() if replace(PLAIN, **{name: value}).only_inserts] == []
    assert not replace(PLAIN, inserts=()).only_inserts
