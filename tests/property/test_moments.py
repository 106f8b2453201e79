"""Every prefix of a drawn history is a moment of append tables, and two of one source are read at the same one."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.table.views import moments_of
from tests.model import LAYOUTS, History, Knobs, draw_history, draw_plan
from tests.model.events import Event
from tests.model.shapes import Key
from tests.support.choose import each_value
from tests.support.fault_scripts_engine import EngineRun, EngineTable

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


def changes(history: History) -> list[Event]:
    """Each once, in the order of the source's log."""
    return [e for e in {id(d.event): d.event for d in history.deliveries}.values() if e.kind == "change"]


def moment(history: History, last: int) -> Counter[Key]:
    """The source's rows once its transactions up to number ``last`` are committed."""
    rows: Counter[Key] = Counter()
    for event in changes(history):
        if event.tx <= last:
            before, after = event.real_before, event.real_after
            rows.subtract([history.table.canonical(before)] if before is not None else [])
            rows.update([history.table.canonical(after)] if after is not None else [])
    return +rows


def time_of(event: Event) -> int:
    assert event.source is not None
    return int(event.source["ts_ms"])


def at_time(history: History, last: int) -> Counter[Key]:
    """The rows as the changes whose times are not later than ``last`` leave them, each key by its last one."""
    if not history.table.key:
        left: Counter[Key] = Counter()
        for event in changes(history):
            if time_of(event) <= last:
                left.subtract([history.table.canonical(event.real_before)] if event.real_before is not None else [])
                left.update([history.table.canonical(event.real_after)] if event.real_after is not None else [])
        return +left
    rows = {repr(e.key): e.real_after for e in changes(history) if time_of(e) <= last}
    return Counter(history.table.canonical(row) for row in rows.values() if row is not None)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 7))])
@pytest.mark.parametrize(
    ("layout", "connector"), each_value(["key_month", "composite", "nokey"], ["mysql", "postgresql", "sqlserver"])
)
def test_two_tables_show_the_same_moment(
    client: Client, database: str, own_tables: str, connector: str, layout: str, seed: int
) -> None:
    draw = Random(f"{connector} {layout} {seed}")
    history = draw_history(draw, connector=connector, identity="full", layout=LAYOUTS[layout], knobs=KNOBS)  # type: ignore[arg-type]
    engine = "append" if history.table.key else "append without key"
    tables = []
    for share in shares(history):
        run = EngineRun(client, database, own_tables, share, engine, policy_of())
        run.run(draw_plan(draw, share, faults=False))
        for made in moments_of(run.table.target, history.table.key).values():
            client.command(made)
        tables.append(run.table)

    _expect_commits(client, tables, history, several=seed == 1)
    _expect_times(client, tables, history, per_commit=connector != "mysql")


def _expect_commits(client: Client, tables: list[EngineTable], history: History, *, several: bool) -> None:
    tx = {d.offset: d.event.tx for d in history.deliveries}
    versions = sorted(int(row["_version"]) for table in tables for row in table.raw())
    ends = {tx[version % COMMIT >> 1]: version for version in versions}
    last = {version // COMMIT: number for number, version in sorted(ends.items())}
    assert len(last) > several  # some other draws hold one transaction only
    firsts = {commit: next(v for v in versions if v // COMMIT == commit) for commit in last}  # any version will do
    found = shown(client, tables, [f"_at_version(version = '{version}')" for version in firsts.values()], history)
    for number, rows in zip(last.values(), found, strict=True):
        assert rows == moment(history, number)


def _expect_times(client: Client, tables: list[EngineTable], history: History, *, per_commit: bool) -> None:
    """``per_commit``: whether all changes of a transaction have its time."""
    rows = [(event.tx, time_of(event)) for event in changes(history)]
    stored = Counter(int(row["ms"]) for table in tables for row in client.rows(TIMES.format(table.name)))
    assert stored.keys() == {time for _, time in rows}
    # What a snapshot reads has the time of reading, which changes of before may follow.
    ordered = per_commit and all(time <= later for (_, time), (_, later) in pairwise(rows))
    times = sorted({time for _, time in rows})
    texts = [f"fromUnixTimestamp64Milli({time}, 'UTC')" for time in times]
    at = shown(client, tables, [f"_at(at = {text})" for text in texts], history)
    living = [f"_history WHERE valid_from <= {text} AND ifNull(valid_to > {text}, 1)" for text in texts]
    for time, found, lives in zip(times, at, shown(client, tables, living, history), strict=True):
        assert found == lives == at_time(history, time)
        if ordered:
            assert found == moment(history, max(tx for tx, own in rows if own <= time))
    [now] = shown(client, tables, ["_history WHERE valid_to IS NULL"], history)
    assert now == moment(history, max(rows)[0])


TIMES = "SELECT toUnixTimestamp64Milli(_source_time) AS ms FROM {}"


def shown(client: Client, tables: list[EngineTable], views: list[str], history: History) -> list[Counter[Key]]:
    """What each of these views shows, of all tables together."""
    names = ", ".join(column.name for column in history.table.columns)
    parts = [
        f"SELECT {place} AS place_, {names} FROM {table.name}{view}"
        for place, view in enumerate(views)
        for table in tables
    ]
    out: list[Counter[Key]] = [Counter() for _ in views]
    for row in client.rows(" UNION ALL ".join(parts)):
        out[row["place_"]][history.table.canonical(row)] += 1
    return out
