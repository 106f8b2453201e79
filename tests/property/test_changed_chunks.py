"""Chunk limits that change while a batch is open: what was begun is finished as it was, and stored once."""

from dataclasses import replace

import pytest

from ch_sink.testing import Kill, LocalBatch, LocalRunner
from tests.property.test_kill_scripts import stored_twice
from tests.support.cases import Case, drawn, faults_of_run, memory_run

ENGINES = ("append", "replacing", "collapsing")


def faults(seed: int, engine: str) -> list[str]:
    """Everything is one batch, whose first life ends after some inserts; the next one cuts chunks of another size."""
    case = Case(seed, engine, "long")
    history, _ = drawn(case)
    run = memory_run(case, history)
    low, ends = run.stream.topic.state(run.stream.topic.name).low, history.ends
    everything = {p: (low[p], end) for p, end in ends.items() if low[p] < end}
    first = LocalRunner(replace(run.stream.settings, chunk_offsets=5 + seed % 7), run.stream.ports())
    if not first.strike(LocalBatch(everything), Kill("after insert", 2 + seed % 5)):
        first.stop()
    other = LocalRunner(replace(run.stream.settings, chunk_offsets=64), run.stream.ports())
    other.catch_up()
    other.stop()
    return faults_of_run(case, history, run) + stored_twice(run)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_begun_is_finished_as_it_was(engine: str) -> None:
    found = {seed: faults(seed, engine) for seed in range(7300, 7304)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}
