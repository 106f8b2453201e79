"""Whatever happens at whichever point, to the driver, a task, the server or the network: the table equals its source.

`python -m tests.fault_run` runs as many scripts as there is time for.
"""

import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from ch_sink.memory.ledger import MemoryFence, MemoryGroupFence
from ch_sink.testing import Fault
from tests.support.cases import Case
from tests.support.fault_scripts import KINDS, SCRIPTED, Script, faults_of_script, scripts, shrunk

FOUND = (Path(__file__).parent / "regressions" / "fault_scripts.txt").read_text().splitlines()
"""Scripts that showed a fault, shortest form first found; lines with # say what it was."""


@pytest.mark.parametrize("engine", SCRIPTED)
def test_tables_equal_their_source(engine: str) -> None:
    mine = (script for script in scripts(1, 8, 3) if script.case.engine == engine)
    found = {str(script): faults_of_script(script) for script in mine}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}


@pytest.mark.long
def test_a_hundred_thousand_scripts() -> None:
    """``CH_SINK_SCRIPTS``: how many instead."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "100000"))
    drawn = islice(scripts(100_000, -(-count // 100), 20), count)
    found = {str(shrunk(script)): wrong[0] for script in drawn if (wrong := faults_of_script(script))}
    assert found == {}


@pytest.mark.parametrize("text", [line for line in FOUND if not line.startswith("#")])
def test_scripts_that_found_something(text: str) -> None:
    assert faults_of_script(Script.parse(text)) == []


def test_every_kind_of_fault_strikes() -> None:
    happened: Counter[str] = Counter()
    for script in scripts(40, 15, 1):
        assert faults_of_script(script, happened) == []
        assert Script.parse(str(script)) == script
    assert set(happened) == set(KINDS)


@pytest.mark.parametrize("fence", [MemoryFence, MemoryGroupFence])
def test_without_fences_a_second_job_is_seen(fence: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail, and what it finds is shrunk to what matters."""
    monkeypatch.setattr(fence, "check", lambda self: None)
    drawn = (script for script in scripts(1, 400, 5) if script.case.engine == "collapsing")
    wrong = next(script for script in drawn if any("sum to" in text for text in faults_of_script(script)))
    short = shrunk(wrong)
    assert {fault.what for found in short.faults.values() for fault in found} <= {
        "second job",
        "second execution",
        "kill",
    }
    assert sum(map(len, short.faults.values())) <= 2


def test_a_script_is_read_as_it_is_written() -> None:
    what = Fault("after insert", 2, what="second job", value=1, dies="before results")
    script = Script(
        Case(7, "collapsing", "truncates"), 3, {0: [what], 4: [Fault("before batch", what="restored", value=2)]}
    )
    assert Script.parse(str(script)) == script
    with pytest.raises(ValueError, match="no fault"):
        Fault.parse("after lunch: kill")
