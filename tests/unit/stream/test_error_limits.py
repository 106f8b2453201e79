"""A stream stops once more of its records became dead letters than the user accepts."""

from collections.abc import Callable

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.counts import Counts
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.ports import DeadLetter
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.error_limits import ErrorLimits, ErrorWatch
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.tasks import RangeDone, Task, TaskResult
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.memory_stream import MemoryStream, MemoryTopic
from tests.unit.stream.test_coordinator import NOTHING

TABLE = document_table((Column("id", "Int64"),), "replacing", "id")


def letter(offset: int) -> DeadLetter:
    return DeadLetter("t", 0, offset, 0, b"k", b"v", (), "decode", None, "no JSON")


class Life:
    """Jobs of one stream, whose tasks make dead letters of the offsets given."""

    def __init__(self, limits: ErrorLimits, bad: Callable[[int], bool]) -> None:
        topic = MemoryTopic("t", {0: NOTHING}, {0: 10_000})
        self.memory = MemoryStream(TABLE, ("id",), topic, policy_of())
        self.settings = StreamSettings("s", "t", policy_of(), errors=limits)
        self.bad = bad

    def open(self) -> Coordinator:
        made = self.memory.coordinator(self.settings, lambda: sum(self.memory.dead_letters.count().values()))
        try:
            made.open()
        except StreamFailed:
            made.close()
            raise
        return made

    def run(self, made: Coordinator, start: int, end: int) -> None:
        def execute(tasks: list[Task]) -> list[TaskResult]:
            found = [letter(o) for o in range(start, end) if self.bad(o)]
            self.memory.dead_letters.put(found, "")
            return [RangeDone("s", 0, start, end, State(), Counts(end - start, dead_letters=len(found)))]

        made.run_batch([OffsetRange("t", "id", 0, start, end, 0, end)], execute)


def test_without_limits_any_number_of_dead_letters_is_accepted() -> None:
    life = Life(ErrorLimits(), lambda _: True)
    made = life.open()
    life.run(made, 0, 5_000)
    made.close()
    life.open()


def test_a_stream_stops_above_the_most_dead_letters_and_in_later_jobs_too_until_they_are_settled() -> None:
    life = Life(ErrorLimits(most=2), lambda o: o in (3, 12, 15))
    made = life.open()
    life.run(made, 0, 10)
    with pytest.raises(StreamFailed, match=r"3 dead letters of this stream, and errors.max is 2") as stopped:
        life.run(made, 10, 20)
    assert "ch_sink dead-letters list" in str(stopped.value.hint)
    assert made.ports.ledger.progress("id") == {0: 20}  # what the batch did is recorded
    made.close()
    with pytest.raises(StreamFailed, match=r"errors.max is 2"):
        life.open()
    life.memory.dead_letters.settle([(0, 12)], "dropped")
    made = life.open()
    life.run(made, 20, 30)


def test_a_limit_of_nothing_stops_at_the_first() -> None:
    life = Life(ErrorLimits(most=0), lambda o: o == 7)
    made = life.open()
    life.run(made, 0, 5)
    with pytest.raises(StreamFailed, match="1 dead letter of this stream"):
        life.run(made, 5, 10)


def test_the_rate_is_that_of_the_newest_batches_and_needs_enough_records() -> None:
    watch = ErrorWatch(ErrorLimits(rate=0.01), lambda: 0)
    watch.add(100, 50)  # too few to judge
    watch = ErrorWatch(ErrorLimits(rate=0.01), lambda: 0)
    for _ in range(20):
        watch.add(500, 5)
    with pytest.raises(StreamFailed, match=r"11 of the last 1000 records became dead letters, and errors.max_rate is"):
        watch.add(500, 6)
    watch.add(500, 6)  # resumed: begins anew
    for _ in range(4):
        watch.add(10_000, 0)
    watch.add(500, 99)  # 99 of 10,500


def test_one_large_batch_is_judged_by_itself() -> None:
    watch = ErrorWatch(ErrorLimits(rate=0.05), lambda: 0)
    watch.add(100_000, 0)
    with pytest.raises(StreamFailed, match="600 of the last 10000 records"):
        watch.add(10_000, 600)
