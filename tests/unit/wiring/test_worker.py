"""Tasks of many streams in few groups: none lost, none twice, and no group much heavier than another."""

import threading
import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ch_sink.order import State
from ch_sink.stream.tasks import RangeTask, ReleaseTask, Task, TaskResult
from ch_sink.wiring.worker import LARGE, Run, Work, packed, run_group, weight
from tests.model import LAYOUTS
from tests.support.harness import ENGINES, target_table

TABLE = target_table(next(iter(LAYOUTS.values())), ENGINES["replacing"])


def task(offsets: int | None, number: int = 0) -> Task:
    if offsets is None:
        return ReleaseTask("s", "t", "id", number, TABLE, State())
    return RangeTask("s", "t", "id", number, TABLE, 0, offsets, State())


@given(st.lists(st.none() | st.integers(1, 100_000), min_size=1, max_size=60), st.integers(1, 16))
def test_every_task_is_in_one_group_and_groups_weigh_alike(drawn: list[int | None], slots: int) -> None:
    tasks = [task(offsets) for offsets in drawn]
    groups = packed(tasks, slots)
    assert len(groups) == min(slots, len(tasks))
    assert sorted(number for group in groups for number in group) == list(range(len(tasks)))
    assert all(groups)
    sums = [sum(weight(tasks[number]) for number in group) for group in groups]
    assert max(sums) - min(sums) <= max(weight(t) for t in tasks)


@given(st.lists(st.sampled_from((10, LARGE)), min_size=1, max_size=12))
def test_results_have_the_order_of_the_tasks_and_large_ones_run_alone(drawn: list[int]) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def run(config: str, one: Task) -> TaskResult:
        with lock:
            running[0] += 1
            if weight(one) >= LARGE:
                most[0] = max(most[0], running[0])
        time.sleep(0.0001)
        with lock:
            running[0] -= 1
        return config  # type: ignore[return-value]

    work = [(str(number), task(offsets, number)) for number, offsets in enumerate(drawn)]
    assert list(run_group(work, run)) == [config for config, _ in work]
    assert most[0] <= 1


def test_small_tasks_of_one_group_wait_for_their_answers_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def run(config: str, one: Task) -> TaskResult:
        meeting.wait()
        return config  # type: ignore[return-value]

    assert list(run_group([(c, task(10)) for c in "abc"], run)) == ["a", "b", "c"]


def test_only_small_tasks_are_prepared_together() -> None:
    prepared: list[str] = []

    def together(work: Sequence[Work]) -> Run:
        prepared.extend(config for config, _ in work)
        return lambda config, _: f"{config} together"  # type: ignore[return-value]

    work = [("a", task(10)), ("b", task(LARGE)), ("c", task(None)), ("d", task(20))]
    found = list(run_group(work, lambda config, _: config, together))  # type: ignore[arg-type, return-value]
    assert found == ["a together", "b", "c together", "d together"]
    assert prepared == ["a", "c", "d"]
