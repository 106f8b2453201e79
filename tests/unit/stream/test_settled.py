"""A task asks the pending table only where something may be in it."""

from typing import Any

from ch_sink.stream.tasks import RangeTask, ReleaseTask, tried
from ch_sink.testing import Kill
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.memory_fed import MemoryFed


def change(op: str, key: int, big: str, at: int) -> Event:
    return postgres(op, {"id": key}, None, {"id": key, "big": big}, at, at - 10)


def watched() -> tuple[MemoryFed, list[bool]]:
    """A stream, and of each task of a range whether the pending table was known to be empty."""
    fed = MemoryFed("replacing")
    settled: list[bool] = []
    opened = fed.runner.open_task

    def note(task: Any) -> Any:
        if isinstance(task, RangeTask):
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
