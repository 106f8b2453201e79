"""Every prefix of a drawn history is a moment: append tables at a commit, two of one source at the same one."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import at_version_of
from tests.model import LAYOUTS, History, Knobs, draw_history, draw_plan
from tests.model.shapes import Key
from tests.support.engine_table import EngineRun

pytestmark = pytest.mark.integration

KNOBS = Knobs(
    operations=(20, 40), partitions=1, restarted_snapshot=False, incremental=False, regress=False, key_changes=False
)
"""Two tables see the same positions, and a move of a row from one table to the other is not an event."""
COMMIT = 1 << 32


def shares(history: History) -> list[History]:
    """Two histories of one source: each has the rows of one half of the keys."""
    half = {d.offset: sum(repr(d.event.key).encode()) % 2 for d in history.deliveries}
    return [
        replace(history, records={p: [r for r in rs if half[r.offset] == n] for p, rs in history.records.items()})
        for n in (0, 1)
    ]


def moment(history: History, last: int) -> Counter[Key]:
    """The source's rows once its transactions up to number ``last`` are committed."""
    rows: Counter[Key] = Counter()
    for event in {id(d.event): d.event for d in history.deliveries}.values():
        if event.kind == "change" and event.tx <= last:
            before, after = event.real_before, event.real_after
            rows.subtract([history.table.canonical(before)] if before is not None else [])
            rows.update([history.table.canonical(after)] if after is not None else [])
    return +rows


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 7))])
@pytest.mark.parametrize("connector", ["mysql", "postgresql", "sqlserver"])
@pytest.mark.parametrize("layout", ["key_month", "composite", "nokey"])
def test_two_tables_show_the_same_commit(
    client: Client, database: str, own_tables: str, connector: str, layout: str, seed: int
) -> None:
    draw = Random(f"{connector} {layout} {seed}")
    history = draw_history(draw, connector=connector, identity="full", layout=LAYOUTS[layout], knobs=KNOBS)  # type: ignore[arg-type]
    engine = "append" if history.table.key else "append without key"
    tables = []
    for share in shares(history):
        run = EngineRun(client, database, own_tables, share, engine, policy_of())
        run.run(draw_plan(draw, share, faults=False))
        made = at_version_of(run.table.target, history.table.key)
        assert made is not None
        client.command(made)
        tables.append(run.table)

    tx = {d.offset: d.event.tx for d in history.deliveries}
    versions = sorted(int(row["_version"]) for table in tables for row in table.raw())
    ends = {tx[version % COMMIT >> 1]: version for version in versions}
    last = {version // COMMIT: number for number, version in sorted(ends.items())}
    assert len(last) > (1 if seed == 1 else 0)  # some other draws hold one transaction only
    for commit, number in last.items():
        version = next(v for v in versions if v // COMMIT == commit)  # any version of the commit will do
        shown = [
            row
            for table in tables
            for row in client.rows(f"SELECT * FROM {table.name}_at_version(version = '{version}')")
        ]
        found = Counter(history.table.canonical(row) for row in shown)
        assert found == moment(history, number)


def test_tables_whose_versions_hold_no_commits_have_no_such_view(
    client: Client, database: str, own_tables: str
) -> None:
    history = draw_history(Random(1), layout=LAYOUTS["key"], knobs=KNOBS)
    for engine, version in (("append", "UInt64"), ("replacing", "UInt128"), ("collapsing", "UInt128")):
        run = EngineRun(client, database, own_tables, history, engine, policy_of(), version=version)
        assert at_version_of(run.table.target, ("id",)) is None
