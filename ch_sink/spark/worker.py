"""Runs a group of tasks in a Python worker."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ch_sink.spark.packing import LARGE
from ch_sink.stream.tasks import Task, TaskResult, weight

__all__ = ["Run", "Work", "run_group"]

_AT_ONCE = 4
"""Small tasks that run at once: they wait for Kafka and ClickHouse most of the time."""

Work = tuple[str, Task]
"""JSON of the stream's Config, and the task."""


Run = Callable[[str, Task], TaskResult]


def run_group(
    work: Sequence[Work], run: Run, together: Callable[[Sequence[Work]], Run] | None = None
) -> Iterable[TaskResult]:
    """The results in the order of the tasks. Large tasks run one after the other, before the small ones.

    ``together``: prepares what these small tasks have in common, and returns how each of them runs.
    """
    results: dict[int, TaskResult] = {}
    small: list[int] = []
    for number, (config, task) in enumerate(work):
        if weight(task) >= LARGE or len(work) == 1:
            results[number] = run(config, task)
        else:
            small.append(number)
    if small:
        if together is not None:
            run = together([work[number] for number in small])
        with ThreadPoolExecutor(min(_AT_ONCE, len(small)), thread_name_prefix="ch_sink task") as pool:
            results |= zip(small, pool.map(lambda number: run(*work[number]), small), strict=True)
    return [results[number] for number in range(len(work))]
