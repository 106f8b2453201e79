"""Lives that end at any point: the table equals its source, on every engine, however often and wherever they end."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ch_sink.ports import RangeSummary
from ch_sink.table.model import Family
from ch_sink.testing import POINTS, Kill, KillSwitch, LocalBatch
from tests.support.cases import Case, drawn, faults_of_run, memory_run
from tests.support.harness import Run, batches_of

ENGINES = ("replacing", "sign", "collapsing", "versioned", "append")
SEEDS = 14
FOUND: Sequence[tuple[Case, Mapping[int, Sequence[Kill]]]] = (
    # A batch that was recorded whole was run again: an omitted value was looked up in a row that had gone in it.
    (Case(7005, "collapsing", "adverse"), {5: [Kill("after results")]}),
    # A change was released before the rest of its chunk was stored, which then counted as outdated.
    (Case(8921, "append", "long"), {1: [Kill("after step"), Kill("after pending")]}),
    # A chunk was run again that had left a change waiting; by then the change was released, and was stored twice.
    (Case(20054, "replacing", "long"), {0: [Kill("before results")]}),
    # Two changes were released together, and after the kill one by one.
    (Case(30548, "append", "long"), {3: [Kill("before release", 2)]}),
    # A partition's first changes, which a truncate had outrun in another partition, counted as those of a new source.
    *((Case(seed, engine, "truncates"), {}) for seed in (8239, 8243, 8311) for engine in ("collapsing", "replacing")),
)
"""Scripts that showed a fault, as short as they can be: batch → where its lives end."""
KNOBS = ("ordinary", "adverse", "long", "truncates")
SWAPS = ("deferred swaps", "oracle", "db2, adverse")
"""Connectors that exchange two keys in one statement and report it row by row."""


def killed(batch: LocalBatch, rng: random.Random) -> LocalBatch:
    """The batch with up to three kills at drawn points."""
    drawn_kills = ((rng.choice(POINTS), rng.choice((1, 1, 2, 3))) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    kills = tuple(Kill(point, 1 if "intents" in point or "results" in point else nth) for point, nth in drawn_kills)
    return LocalBatch(batch.ranges, batch.cuts, batch.order, kills)


def faults(seed: int, engine: str, knobs: str = "", folds: list[int] | None = None) -> list[str]:
    """``folds``: is given how many results were folded, of a ledger that keeps the last of each partition only."""
    knobs = knobs or KNOBS[seed % (3 if engine == "append" else 4)]
    case = Case(seed, engine, knobs)
    history, plan = drawn(case)
    rng = random.Random(seed)
    run = memory_run(case, history)
    if folds is not None:
        run.stream.ledger.keep(1)
    for batch in batches_of(plan, collapsing=run.collapsing):
        run.runner.run([killed(batch, rng)])
        if rng.random() < 0.3:  # between two batches: nothing is run again
            run.runner.kill()
    run.runner.stop()
    if folds is not None:
        folds.append(sum(1 for r in run.stream.ledger._book.ranges if isinstance(r, RangeSummary)))
    return faults_of_run(case, history, run) + stored_twice(run)


def stored_twice(run: Run) -> list[str]:
    """Changes that a replacing table holds twice, which no reader would notice."""
    table = run.table.table
    if table.engine.family is not Family.REPLACING:
        return []
    names = [*run.table.keys, *table.sorting_key, *table.system_columns]
    found = Counter(tuple(str(row[name]) for name in names) for row in run.table.rows)
    return [f"stored {n}x: {dict(zip(names, row, strict=True))}" for row, n in found.items() if n > 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_equal_their_source(engine: str) -> None:
    found = {seed: faults(seed, engine) for seed in range(7000, 7000 + SEEDS)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ledger_that_keeps_almost_nothing_is_enough(engine: str) -> None:
    folds: list[int] = []
    found = {seed: faults(seed, engine, folds=folds) for seed in range(7100, 7100 + SEEDS // 2)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}
    assert sum(folds) > SEEDS // 2


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "append"])
def test_swapped_keys_are_right_whenever_a_life_ends(engine: str) -> None:
    found = {seed: faults(seed, engine, SWAPS[seed % 3]) for seed in range(7100, 7112)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}


@pytest.mark.long
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "append"])
def test_a_thousand_scripts_with_swaps(engine: str) -> None:
    found = {seed: faults(seed, engine, SWAPS[seed % 3]) for seed in range(10000, 11000)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("case", "kills"), FOUND, ids=lambda given: f"{given.seed}-{given.engine}" if isinstance(given, Case) else ""
)
def test_scripts_that_found_something(case: Case, kills: Mapping[int, Sequence[Kill]]) -> None:
    history, plan = drawn(case)
    run = memory_run(case, history)
    batches = enumerate(batches_of(plan, collapsing=run.collapsing))
    run.run_batches([replace(batch, kills=kills.get(number, ())) for number, batch in batches])
    assert faults_of_run(case, history, run) + stored_twice(run) == []


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_thousand_scripts_for_each_engine(engine: str) -> None:
    found = {seed: faults(seed, engine) for seed in range(8000, 9000)}
    assert {seed: wrong[0] for seed, wrong in found.items() if wrong} == {}


def test_every_point_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of columns that come, which these histories lack: see test_evolution_drawn."""
    met: Counter[str] = Counter()
    reach = KillSwitch.reach
    monkeypatch.setattr(KillSwitch, "reach", lambda self, point: (met.update([point]), reach(self, point)))
    for seed in range(7000, 7000 + SEEDS):
        faults(seed, "replacing")
    faults(7000, "collapsing")
    evolving = {"before alter", "after alter", "before dead letters", "after dead letters"}
    assert set(POINTS) - set(met) <= evolving


def test_a_point_must_exist() -> None:
    with pytest.raises(ValueError, match="no such point"):
        Kill("after lunch")
