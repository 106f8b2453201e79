"""What all tests share: fixtures, where files go, how tests are spread over workers, and how Hypothesis draws.

Temporary files live in memory where there is room: a table or a topic is many small files.

Hypothesis' profile ``steady`` (the default) draws the same examples in every run, so that a green run says something
about the next one; ``HYPOTHESIS_PROFILE=search`` draws new ones.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.choose import leave_for_the_night
from tests.support.slowest import shown

pytest_plugins = (
    "tests.support.sink",
    "tests.support.connect",
    "tests.support.endpoint",
    "tests.support.engine",
    "tests.support.frames",
    "tests.support.hand",
    "tests.support.kafka",
    "tests.support.ledgers",
    "tests.support.native",
    "tests.support.spark",
    "tests.support.sqlserver_database",
)

ORDER = ("tests/job/", "tests/kafka/", "tests/real/", "tests/engines/", "tests/integration/", "tests/property/", "")
"""Long units first, so that none is left for the end of a run with several workers."""

MEMORY = Path("/dev/shm")

if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``pytest -n 2``; without pytest-xdist the hook is not called."""
    from tests.support.workers import WholeFiles

    return WholeFiles(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection: most objects stay, and scanning them takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_for_the_night(items)
    items.sort(key=lambda item: next(i for i, folder in enumerate(ORDER) if item.nodeid.startswith(folder)))


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no collection of garbage has to go over it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the time went."""
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    if lines := shown(reports):
        terminalreporter.section("seconds")
        for line in lines:
            terminalreporter.write_line(line)
