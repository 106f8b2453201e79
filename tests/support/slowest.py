"""Where the time of a run goes: the seconds of its folders, and its slowest files, over all workers."""

from collections import Counter
from collections.abc import Iterable

import pytest

FILES = 10


def seconds_of(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """File → seconds of its tests and of the fixtures that were made for them."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return seconds


def shown(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines for the terminal; none for a run of a few files."""
    every = list(reports)
    files = seconds_of(every)
    if len(files) <= FILES:
        return []
    tests = Counter(_folder(report.nodeid) for report in every if report.when == "call")
    folders: Counter[str] = Counter()
    for name, seconds in files.items():
        folders[_folder(name)] += seconds
    by_folder = [f"{s:8.1f} s  {tests[folder]:5} tests  {folder}" for folder, s in folders.most_common()]
    by_file = [f"{s:8.1f} s  {name}" for name, s in files.most_common(FILES)]
    return [*by_folder, f"The {FILES} slowest files:", *by_file]


def _folder(nodeid: str) -> str:
    """``tests/unit/types/test_x.py::test`` belongs to ``tests/unit``, ``tests/test_house.py`` to ``tests``."""
    return "/".join(nodeid.partition("::")[0].split("/")[:-1][:2])
