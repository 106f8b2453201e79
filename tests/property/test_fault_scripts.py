"""Whatever happens at whichever point, to the driver, a task, the server or the network: the table equals its source.

`python -m tests.fault_run` runs as many scripts as there is time for.
"""

import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory.ledger import MemoryFence, MemoryGroupFence
from ch_sink.ports import RangeSummary
from tests.support.cases import Case, drawn, faults_of_run
from tests.support.fault_scripts import (
    KINDS,
    SCRIPTED,
    SWAPS,
    Script,
    draw_script,
    faults_of_script,
    run_script,
    scripts,
    shrunk,
    stored_twice,
)
from tests.support.kills import POINTS, Fault, KillSwitch
from tests.support.rollups import PLAIN

FOUND = (Path(__file__).parent / "regressions" / "fault_scripts.txt").read_text().splitlines()
"""Scripts that showed a fault, shortest form first found; lines with # say what it was."""


def wrong_in(chosen: Iterable[Script]) -> dict[str, str]:
    """Script → what is wrong. Every other table that collapses has rollups."""
    found = {}
    for number, script in enumerate(chosen):
        rolled = script.case.engine in ("collapsing", "versioned") and number % 2
        if wrong := faults_of_script(script, rollups=PLAIN if rolled else ()):
            found[str(script)] = wrong[0]
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", SCRIPTED)
def test_tables_equal_their_source(engine: str) -> None:
    assert wrong_in(script for script in scripts(1, 5, 3) if script.case.engine == engine) == {}


@pytest.mark.long
def test_changes_that_share_inserts_are_there_once() -> None:
    """Of append tables, in six partitions."""
    cases = [Case(seed, "append", "wide") for seed in range(1, 25)]
    assert wrong_in(draw_script(random.Random(f"{case.seed} wide"), case) for case in cases) == {}


@pytest.mark.long
def test_a_history_is_stored_once_beside_a_ledger_of_an_earlier_time() -> None:
    """As after a fail-over of the sink's own tables: what was read since is looked up, or the stream stops."""
    equal = stopped = 0
    for script in scripts(1, 50, 4):
        restored = {n: [f for f in found if f.what == "restored"] for n, found in script.faults.items()}
        if script.case.engine != "append" or not (faults := {n: found for n, found in restored.items() if found}):
            continue
        try:
            run = run_script(replace(script, faults=faults), ledger_alone=True)
        except StreamFailed as error:
            assert "its ledger may be older than its table" in str(error)  # noqa: PT017
            stopped += 1
        else:
            assert faults_of_run(script.case, drawn(script.case)[0], run) == [], script
            equal += 1
    assert equal > 12
    assert stopped


@pytest.mark.long
def test_swapped_keys_are_right() -> None:
    assert wrong_in(scripts(7100, 6, 1, SWAPS)) == {}


@pytest.mark.long
def test_a_hundred_thousand_scripts() -> None:
    """``CH_SINK_SCRIPTS``: how many instead."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "100000"))
    chosen = islice(scripts(100_000, -(-count // 100), 20), count)
    found = {str(shrunk(script)): wrong[0] for script in chosen if (wrong := faults_of_script(script))}
    assert found == {}


@pytest.mark.long
def test_thousands_of_scripts_with_swaps_and_rollups() -> None:
    """``CH_SINK_SCRIPTS``: how many instead, of each."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "5000"))
    assert wrong_in(islice(scripts(10_000, count, 1, SWAPS), count)) == {}
    assert wrong_in(islice(scripts(3 * 10**6, count, 10), count)) == {}


@pytest.mark.long
def test_a_ledger_that_keeps_almost_nothing_is_enough() -> None:
    folded = 0
    for script in scripts(7100, 6, 1):
        run = run_script(script, kept=1)
        assert faults_of_run(script.case, drawn(script.case)[0], run) + stored_twice(run) == [], script
        folded += sum(isinstance(entry, RangeSummary) for entry in run.stream.ledger._book.ranges)
    assert folded > 10


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", [line for line in FOUND if not line.startswith("#")])
def test_scripts_that_found_something(text: str) -> None:
    assert faults_of_script(Script.parse(text)) == []


@pytest.mark.long
def test_every_kind_of_fault_strikes() -> None:
    happened: Counter[str] = Counter()
    for script in scripts(40, 15, 1):
        assert faults_of_script(script, happened) == []
        assert Script.parse(str(script)) == script
    assert set(happened) == set(KINDS)


def test_every_point_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of columns that come, which these histories lack: see test_evolution_drawn."""
    met: Counter[str] = Counter()
    reach = KillSwitch.reach
    monkeypatch.setattr(KillSwitch, "reach", lambda self, point: (met.update([point]), reach(self, point)))
    for text in ("30548 append long, chunks of 0", "8239 collapsing truncates, chunks of 0"):
        run_script(Script.parse(text))
    assert set(POINTS) - set(met) <= {"before alter", "after alter", "before dead letters", "after dead letters"}


@pytest.mark.parametrize("fence", [MemoryFence, pytest.param(MemoryGroupFence, marks=pytest.mark.long)])
def test_without_fences_a_second_job_is_seen(fence: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail, and what it finds is shrunk to what matters."""
    monkeypatch.setattr(fence, "check", lambda self: None)
    chosen = (script for script in scripts(1, 400, 5) if script.case.engine == "collapsing")
    wrong = next(script for script in chosen if any("sum to" in text for text in faults_of_script(script)))
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
