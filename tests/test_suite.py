"""What a run of the suite says about itself."""

import pytest

from tests.support.slowest import seconds_of, shown


def report(nodeid: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid, 1, ""), {}, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_a_run_shows_its_folders_and_its_ten_slowest_files_with_the_time_of_fixtures() -> None:
    reports = [report(f"tests/unit/a/test_{i}.py::test", "call", float(i)) for i in range(11)]
    reports += [report("tests/job/test_0.py::test[a::b]", when, 20.0) for when in ("setup", "call", "teardown")]
    assert seconds_of(reports)["tests/job/test_0.py"] == 60.0
    lines = shown(reports)
    assert lines[:2] == ["    60.0 s      1 tests  tests/job", "    55.0 s     11 tests  tests/unit"]
    assert [line.split()[-1] for line in lines[3:5]] == ["tests/job/test_0.py", "tests/unit/a/test_10.py"]
    assert len(lines[3:]) == 10


def test_a_run_of_few_files_shows_nothing() -> None:
    assert shown([report("tests/unit/test_0.py::test", "call", 1.0)]) == []
