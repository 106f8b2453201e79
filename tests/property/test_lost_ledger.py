"""A stream whose ledger is lost reads its topic again from the start: its table equals the source afterwards."""

from copy import copy
from dataclasses import replace

import pytest

from ch_sink.memory import MemoryHandover, MemoryLedger, MemoryPending
from tests.model.reference import difference
from tests.support.cases import Case, drawn, memory_run
from tests.support.choose import each_value
from tests.support.harness import Run, batches_of
from tests.support.local_runner import LocalRunner
from tests.support.memory_stream import MemoryGroup

KNOBS = ("ordinary", "truncates", "adverse")
ENGINES = ("replacing", "sign")
"""A history is stored once more then. A collapsing table cannot look up a value that a change leaves out, once the row
that had it is gone."""


def faults(seed: int, engine: str, knobs: str) -> list[str]:
    """What is wrong after the table was filled, the ledger lost, and everything read again."""
    case = Case(seed, engine, knobs)
    history, plan = drawn(case)
    run = memory_run(case, history)
    batches = batches_of(plan, collapsing=run.collapsing)
    run.run_batches(batches)
    _lose_ledger(run)
    run.run_batches(batches)
    found = difference(history, [_plain(row) for row in run.table.current()])
    return [found] if found else []


def faults_of_two(seed: int, engine: str, knobs: str) -> list[str]:
    """What is wrong after another stream has read the first half into the table, too, and this one goes on."""
    case = Case(seed, engine, knobs)
    history, plan = drawn(case)
    run = memory_run(case, history)
    batches = batches_of(plan, collapsing=run.collapsing)
    first = batches[: len(batches) // 2]
    run.run_batches(first)
    other = copy(run.stream)
    other.settings = replace(other.settings, name="other")
    other.ledger, other.group, other.pending = MemoryLedger("other"), MemoryGroup(), MemoryPending()
    other.handover = MemoryHandover(run.stream.handover.types)
    another = LocalRunner(other.settings, other.ports())
    another.run(first)
    another.stop()
    run.runner.catch_up(11)
    found = difference(history, [_plain(row) for row in run.table.current()])
    return [found] if found else []


def _lose_ledger(run: Run) -> None:
    """The server still knows the tokens; hand-overs and waiting changes are kept as well."""
    run.stream.ledger = MemoryLedger(run.stream.ledger.stream)
    # A runner remembers how far the topic was read: the second pass is another one.
    run.runner = LocalRunner(run.stream.settings, run.stream.ports())


def _plain(row: dict[str, object]) -> dict[str, object]:
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in row.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("knobs", "engine"), each_value(KNOBS, ENGINES))
def test_a_lost_ledger_loses_no_row(engine: str, knobs: str) -> None:
    found = {seed: faults(seed, engine, knobs) for seed in range(7200, 7202)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("knobs", "engine"), each_value(KNOBS, ENGINES))
def test_a_stream_goes_on_above_another_that_has_written_its_table(engine: str, knobs: str) -> None:
    found = {seed: faults_of_two(seed, engine, knobs) for seed in range(7200, 7202)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}
