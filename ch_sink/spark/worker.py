"""Runs a group of tasks in a Python worker."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ch_sink.spark.packing import LARGE, weight
from ch_sink.stream.tasks import Task, TaskResult

__all__ = ["run_group"]

_AT_ONCE = 4
"""Small tasks that run at once: they wait for Kafka and ClickHouse most of the time."""

Work = tuple[str, Task]
"""JSON of the stream's Config, and the task."""


def run_group(work: Sequence[Work], run: Callable[[str, Task], TaskResult]) -> Iterable[TaskResult]:
    """The results in the order of the tasks. Large tasks run one after the other, before the small ones."""
    results: dict[int, TaskResult] = {}
    small: list[int] = []
    for number, (config, task) in enumerate(work):
        if weight(task) >= LARGE or len(work) == 1:
            results[number] = run(config, task)
        else:
            small.append(number)
    if small:
        with ThreadPoolExecutor(min(_AT_ONCE, len(small)), thread_name_prefix="ch_sink task") as pool:
            results |= zip(small, pool.map(lambda number: run(*work[number]), small), strict=True)
    return [results[number] for number in range(len(work))]
