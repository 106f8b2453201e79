"""Waiting changes: what is settled, what is given up, and what waits since the topic was another one."""

from typing import Any

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.stream.tasks import RangeTask, ReleaseTask, tried
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.kills import Kill
from tests.support.memory_fed import NOTHING, MemoryFed


def change(op: str, key: int, big: str, at: int) -> Event:
    return postgres(op, {"id": key}, None, {"id": key, "big": big}, at, at - 10)


def moved(old: int, new: int, at: int) -> list[Event]:
    return key_change(postgres("d", {"id": old}, None, None, at, at - 10), change("c", new, PLACEHOLDER, at))


def recreated(fed: MemoryFed, *, dies: bool) -> None:
    fed.topic.topic_id = "id2"
    for p in (0, 1):
        fed.topic.partitions[p], fed.topic.ends[p], fed.read[p] = NOTHING, 0, 0
    if dies:
        fed.runner.kill()


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_changes_of_the_deleted_topic_are_given_up(engine: str, dies: bool, caplog: pytest.LogCaptureFixture) -> None:
    fed = MemoryFed(engine, policy=policy_of(truncate="apply"), topic_recreated="restart")
    fed.send(1, change("c", 1, "one", 100))
    fed.send(0, moved(1, 2, 200)[2], change("u", 2, "later", 300), moved(7, 8, 400)[2])
    fed.poll()
    assert len(fed.stream.pending) == 3
    recreated(fed, dies=dies)
    fed.send(0, change("r", 9, "nine", 900))
    fed.poll()
    assert len(fed.stream.pending) == 0
    assert fed.letters == [(0, 2, "unresolved")]  # a later image of its row makes the first one needless
    assert fed.view() == {1: "one", 2: "later", 9: "nine"}
    assert "3 changes of partition 0 of the former topic id no longer wait (dead letters: 1)" in caplog.text


def test_what_has_arrived_by_then_is_applied_and_loses_against_the_new_topic() -> None:
    fed: Any = MemoryFed(topic_recreated="restart")
    fed.send(1, change("c", 1, "one", 100))
    fed.send(0, moved(1, 2, 200)[2], moved(3, 4, 300)[2])
    fed.poll()
    handover = fed.stream.handover
    fed.send(1, moved(1, 2, 200)[0])
    fed.stream.handover.stored = stored = dict(handover.stored)
    fed.runner.coordinator.release = lambda **_: iter(())  # the job ends before it releases what has arrived
    fed.poll()
    assert len(stored) == 1
    recreated(fed, dies=True)
    fed.send(0, change("r", 4, "four", 50))
    fed.poll()
    assert fed.view() == {2: "one", 4: "four"}
    assert fed.letters == [(0, 1, "unresolved")]


ENGINES = ("replacing", "sign", "versioned", "append")


def row(key: int, big: str) -> dict[str, object]:
    return {"id": key, "big": big}


def given_up(engine: str) -> tuple[MemoryFed, list[Event]]:
    """Kafka Connect dies after the create half, and the deadline passes before it is back."""
    fed = MemoryFed(engine, deadline=0.0)
    fed.feed(1, change("c", 1, "one", 100))
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), change("c", 2, PLACEHOLDER, 200))
    fed.feed(0, halves[2])
    assert fed.letters == [(0, 0, "unresolved")]
    return fed, halves


def sent_again(fed: MemoryFed, halves: list[Event], *more: Event) -> None:
    fed.feed(1, halves[0], halves[1])
    fed.feed(0, halves[2], *more)


@pytest.mark.parametrize("engine", ENGINES)
def test_both_halves_of_a_key_change_come_again(engine: str) -> None:
    fed, halves = given_up(engine)
    sent_again(fed, halves)
    assert fed.view() == {2: "one"}


@pytest.mark.parametrize("engine", ENGINES)
def test_they_come_again_behind_later_changes(engine: str) -> None:
    """Of another key; these come again too, and are applied once."""
    fed, halves = given_up(engine)
    later = change("c", 3, "three", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later)
    assert fed.view() == {2: "one", 3: "three"}
    counts = fed.stream.ledger.totals()[0].counts.kinds
    assert (counts["applied_late"], counts["redelivered"]) == (1, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_later_change_of_its_row_stays(engine: str) -> None:
    fed, halves = given_up(engine)
    later = change("u", 2, "later", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later, change("u", 3, "three", 400))
    assert fed.view() == {2: "later", 3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_applied_late_counts_as_applied(engine: str) -> None:
    fed, halves = given_up(engine)
    fed.feed(0, change("c", 3, "three", 300))
    sent_again(fed, halves)
    gone: Any = postgres("d", {"id": 2}, None, None, 400, 390)
    fed.feed(0, gone)
    sent_again(fed, halves)
    assert fed.view() == {3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_attempt_at_a_chunk_does_not_count_its_own_dead_letters(engine: str) -> None:
    """Each attempt decides as the first one did: what repeats inside a chunk is skipped."""
    fed = MemoryFed(engine, partitions=1)
    lost = change("u", 2, PLACEHOLDER, 200)  # of a row that the table does not have
    fed.feed(0, lost, change("c", 1, "one", 300), lost, kills=[Kill("before results")])
    assert fed.view() == {1: "one"}
    assert fed.letters == [(0, 0, "unresolved")]


def watched() -> tuple[MemoryFed, list[bool]]:
    """A stream, and of each task of a range whether the pending table was known to be empty."""
    fed = MemoryFed("replacing")
    settled: list[bool] = []
    opened = fed.runner.open_task

    def note(task: Any) -> Any:
        # What may be stored together with others is tried first, and opened again if it may not.
        if isinstance(task, RangeTask) and task.first:
            settled.append(task.settled)
        return opened(task)

    fed.runner.open_task = note  # type: ignore[method-assign]
    return fed, settled


def test_a_stream_without_waiting_changes_never_asks() -> None:
    fed, settled = watched()
    for at in (100, 200, 300):
        fed.feed(0, change("c", at, "x", at))
    assert settled == [True] * 3


def test_a_change_that_waits_is_looked_at_until_it_is_applied() -> None:
    fed, settled = watched()
    fed.feed(1, change("c", 1, "one", 100))
    first, second, third = key_change(postgres("d", {"id": 1}, None, None, 200, 190), change("c", 2, PLACEHOLDER, 200))
    fed.feed(0, third)
    fed.feed(0, change("c", 3, "three", 300))
    assert settled == [True, True, False]
    fed.feed(1, first, second)
    fed.feed(0, change("c", 4, "four", 400))
    fed.feed(0, change("c", 5, "five", 500))
    assert settled[-2:] == [False, True]
    assert fed.view() == {2: "one", 3: "three", 4: "four", 5: "five"}


def test_an_attempt_that_follows_another_asks() -> None:
    fed, settled = watched()
    fed.feed(0, change("c", 1, "one", 100), kills=[Kill("before results")])
    assert settled[0]
    assert not any(settled[1:])
    fed.feed(0, change("c", 2, "two", 200))
    assert settled[-1]


def test_spark_starts_a_failed_task_as_one_that_asks() -> None:
    fed = MemoryFed("replacing")
    tasks: list[RangeTask] = []
    opened = fed.runner.open_task

    def note(task: Any) -> Any:
        tasks.extend([task] if isinstance(task, RangeTask) else [])
        return opened(task)

    fed.runner.open_task = note  # type: ignore[method-assign]
    fed.feed(0, change("c", 1, "one", 100))
    [first] = tasks
    again = tried(first, 2)
    assert tried(first, 0) is first
    assert isinstance(again, RangeTask)
    assert (again.attempt, again.settled) == (first.attempt + 2, False)
    release = ReleaseTask(first.stream, first.topic, first.topic_id, 0, first.table, first.state)
    assert tried(release, 1).attempt == 1


@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_a_column_is_added_between_the_halves_of_a_key_change(engine: str) -> None:
    fed = MemoryFed(engine, policy=policy_of(evolve="add_columns"))
    fed.feed(1, postgres("c", {"id": 1}, None, {"id": 1, "big": "value"}, 100, 90))
    create = postgres("c", {"id": 2}, None, {"id": 2, "big": PLACEHOLDER, "extra": 7}, 200, 190)
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), create)
    fed.feed(1, halves[0])
    fed.feed(0, halves[2])
    rows = fed.stream.table.current()
    assert [(r["id"], r["big"], r["extra"]) for r in rows] == [(2, b"value", 7)]
