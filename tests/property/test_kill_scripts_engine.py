"""Lives that end at any point, over the real engine with its merges stopped: equal, and each change stored once."""

import random
from collections import Counter

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.model.reference import difference, sign_faults
from tests.property.test_kill_scripts import killed
from tests.support.cases import Case, drawn, log_faults
from tests.support.engine_table import EngineRun, EngineTable
from tests.support.harness import batches_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POLICY = policy_of(truncate="apply", on_bad_record="fail")
CASES = [Case(9001, "replacing"), Case(9001, "append"), Case(9003, "collapsing")]
MORE = [
    # Found in memory: see test_kill_scripts.
    Case(30548, "append", "long"),
    Case(20054, "replacing", "long"),
    *(
        Case(seed, engine, knobs)
        for engine in ("replacing", "sign", "collapsing", "versioned", "append")
        for seed, knobs in zip(range(9000, 9090), ("ordinary", "adverse", "long") * 30, strict=True)
    ),
]
"""For the long run."""


def faults(run: EngineRun, case: Case) -> list[str]:
    """What is wrong in the table after the case."""
    history, plan = drawn(case)
    rng = random.Random(case.seed)
    table = run.table
    table.client.command(f"SYSTEM STOP MERGES {table.name}")
    for batch in batches_of(plan, collapsing=run.collapsing):
        run.runner.run([killed(batch, rng)])
        if rng.random() < 0.3:
            run.runner.kill()
    run.runner.stop()
    wrong = [f"view: {found}" for found in [difference(history, table.view())] if found]
    if run.collapsing:
        wrong += sign_faults(history.table, table.raw(), "_sign", history.truth)
    if case.engine == "append":
        wrong += log_faults(history, table.raw())
    return wrong + stored_twice(table, case)


def stored_twice(table: EngineTable, case: Case) -> list[str]:
    """Changes that a replacing table holds twice, which no reader would notice."""
    if case.engine not in ("replacing", "sign"):
        return []
    own = "_is_deleted" if case.engine == "replacing" else "_sign"
    names = list(dict.fromkeys([*table.layout.table.key, *table.layout.order_by, "_version", own]))
    found = Counter(tuple(str(row[name]) for name in names) for row in table.raw())
    return [f"stored {n}x: {dict(zip(names, row, strict=True))}" for row, n in found.items() if n > 1]


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(c, marks=pytest.mark.long) for c in MORE)],
    ids=lambda c: f"{c.engine}-{c.knobs}-{c.seed}",
)
def test_each_change_is_stored_once(client: Client, database: str, own_tables: str, case: Case) -> None:
    history, _ = drawn(case)
    assert faults(EngineRun(client, database, own_tables, history, case.engine, POLICY), case) == []
