"""Packs the tasks of many streams into as many groups as there are slots, each to be run by one Python worker."""

import heapq
from collections.abc import Sequence

from ch_sink.stream.tasks import Task, weight

__all__ = ["LARGE", "packed"]

LARGE = 20_000
"""Offsets from which a task fills a worker: it reads, plans and inserts at once, and holds whole chunks in memory."""


def packed(tasks: Sequence[Task], slots: int) -> list[list[int]]:
    """The numbers of the tasks in at most so many groups of about the same weight; the heaviest come first.

    Each task goes to the group that is lightest so far.
    """
    groups: list[list[int]] = [[] for _ in range(min(max(slots, 1), len(tasks)))]
    lightest = [(0, number) for number in range(len(groups))]
    for number in sorted(range(len(tasks)), key=lambda n: (-weight(tasks[n]), n)):
        so_far, group = heapq.heappop(lightest)
        groups[group].append(number)
        heapq.heappush(lightest, (so_far + weight(tasks[number]), group))
    return groups
