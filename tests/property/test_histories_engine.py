"""Drawn histories into the real engine, through the real writer, lookup, hand-over and pending table.

Compared are the engine's own answers: ``FINAL``, sums of signs, the ``_current`` view, before and after
``OPTIMIZE … FINAL``, and under a row policy.
"""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.model.reference import difference, sign_faults
from tests.support.cases import Case, drawn
from tests.support.fault_scripts_engine import DDL, EngineRun, EngineTable

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POLICY = policy_of(truncate="apply", on_bad_record="fail")
CURRENT = ("replacing", "sign", "collapsing", "versioned")
CASES = [
    Case(500, "versioned"),
    Case(510, "collapsing", "adverse"),
    Case(520, "sign", "truncates"),
    *(Case(530, engine) for engine in ("append", "append without key")),
    Case(552, "replacing", "swaps", version="UInt256"),
]
MORE = [
    Case(550, "append", "swaps, adverse", version="UInt64"),
    Case(551, "sign", "swaps", version="Int64"),
    *(Case(seed, engine) for engine in CURRENT for seed in (500, 501, 502)),
    *(Case(seed, engine, "adverse") for engine in CURRENT for seed in (510, 511)),
    *(Case(520, engine, "truncates") for engine in CURRENT),
    *(Case(550, engine, "swaps, adverse", version="UInt64") for engine in CURRENT),
    *(Case(531, engine) for engine in ("append", "append without key")),
    *(Case(seed, engine, knobs) for engine in CURRENT for knobs in ("ordinary", "adverse") for seed in range(600, 640)),
    *(Case(seed, engine) for engine in ("append", "append without key") for seed in range(640, 660)),
    *(
        Case(seed, engine, knobs, version=version)
        for engine in (*CURRENT, "append")
        for knobs in ("swaps", "swaps, adverse")
        for version in ("UInt64", "Int64", "UInt256")
        for seed in range(660, 670)
    ),
]
"""For the long run. Histories with faults are in test_fault_scripts_engine."""


def answers(table: EngineTable, case: Case) -> list[str]:
    """What the engine's readers get wrong."""
    history, _ = drawn(case)
    wrong = [f"view: {found}" for found in [difference(history, table.view())] if found]
    if case.engine not in CURRENT:
        return wrong
    wrong += [f"FINAL: {found}" for found in [difference(history, table.final())] if found]
    if case.engine in ("collapsing", "versioned"):
        wrong += sign_faults(history.table, table.raw(), "_sign", history.truth)
    return wrong


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(c, marks=pytest.mark.long) for c in MORE if c not in CASES)],
    ids=lambda c: f"{c.engine}-{c.knobs}-{c.version}-{c.seed}".replace(" ", "_"),
)
def test_the_engine_answers_with_the_sources_rows(client: Client, database: str, own_tables: str, case: Case) -> None:
    history, plan = drawn(case)
    run = EngineRun(client, database, own_tables, history, case.engine, POLICY, version=case.version)
    run.run(plan)
    table = run.table
    assert answers(table, case) == []
    table.merge()
    assert answers(table, case) == []


@pytest.mark.long
@pytest.mark.parametrize("engine", CURRENT)
def test_the_view_is_right_under_a_row_policy(client: Client, database: str, own_tables: str, engine: str) -> None:
    case = Case(540, engine)
    history, plan = drawn(case)
    run = EngineRun(client, database, own_tables, history, engine, POLICY)
    run.run(plan)
    table = run.table
    mark = "_is_deleted = 0" if engine == "replacing" else "_sign != -1"
    client.command(f"CREATE ROW POLICY p ON {table.name} USING {mark} TO ALL")
    try:
        settings = {"apply_row_policy_after_final": 1}
        if engine in ("replacing", "sign"):
            assert difference(history, table.view(**settings)) == ""
            names = ", ".join(c.name for c in history.table.columns)
            rows = client.rows(f"SELECT {names} FROM {table.name} FINAL", settings=settings)
            assert difference(history, rows) == ""
    finally:
        client.command(f"DROP ROW POLICY p ON {table.name}")
    assert difference(history, table.view()) == ""


def test_every_engine_is_met() -> None:
    assert {case.engine for case in CASES} == set(DDL)
