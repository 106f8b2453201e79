"""What `make test` runs on the newest engine, on older ones: ports, numbered cases, recorded streams, histories."""

import os
import subprocess
import sys

import pytest

from ch_sink.local.clickhouse.launch import ENGINE
from tests.support.endpoint import skip_unless_installed

FILES = (
    "tests/contract",
    "tests/integration/test_cases.py",
    "tests/integration/test_cases_columns.py",
    "tests/integration/test_cases_faults.py",
    "tests/integration/test_cases_values.py",
    "tests/kafka/test_outages.py",
    "tests/property/test_histories_engine.py",
    "tests/property/test_fault_scripts_engine.py",
)
NEWER = "not under_a_row_policy and not case_12_times"
"""The one sets `apply_row_policy_after_final`, which 25.8 does not know. The other has years that the engines refuse,
and makes `Time` columns, for which 25.8 needs a setting; ``test_page`` measures both."""


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", [pytest.param(version, marks=skip_unless_installed(version)) for version in ("25.8", "26.1", "26.3")]
)
def test_the_suite_passes_on_an_older_engine(engine: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-k", NEWER, *FILES]
    run = subprocess.run(command, env={**os.environ, ENGINE: engine}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
