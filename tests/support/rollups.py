"""Rollups of the model's tables, and what is wrong with them: compared with the source's rows, group by group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.rollup_plan import rollup_of
from tests.model import History
from tests.support.memory_table import MemoryTable

PLAIN = (
    RollupChoice("by_tag", (("tag", "tag"), ("place", "place")), sums=(("total", "n"),), count="rows"),
    RollupChoice("by_day", (("day", "day"),), sums=(("places", "place"),), count="rows"),
)
"""Of plain columns, for tables in memory."""
COMPUTED = (
    RollupChoice(
        "by_month",
        (("month", "toYYYYMM(day)"), ("tag", "tag")),
        sums=(("total", "n"), ("letters", "length(big)")),
        avgs=(("mean", "n"),),
        count="rows",
        where="place % 3 != 1",
    ),
    RollupChoice("by_place", (("odd", "place % 2"),), sums=(("places", "place"),), count="rows"),
)
"""For the engine."""

Groups = dict[tuple[Any, ...], list[Any]]


def with_rollups(table: TargetTable, choices: Sequence[RollupChoice]) -> TargetTable:
    """The table with these rollups of plain columns."""
    types = {c.name: c.type for c in table.columns}
    made = [rollup_of(table, one, [types[text] for _, text in (*one.by, *one.values)]) for one in choices]
    return replace(table, rollups=tuple(made))


def grouped(
    rows: Sequence[Mapping[str, Any]], by: Callable[[Any], Any], sums: Sequence[Callable[[Any], Any]]
) -> Groups:
    """Group → how many rows, and the sums of what is not null; None where all of it is."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(row)
    return {
        group: [
            len(mine),
            *(sum(known) if (known := [v for r in mine if (v := of(r)) is not None]) else None for of in sums),
        ]
        for group, mine in found.items()
    }


def _differences(name: str, have: Groups, want: Groups) -> list[str]:
    groups = {g: (have.get(g), want.get(g)) for g in {*have, *want} if have.get(g) != want.get(g)}
    return [f"rollup {name}, group {group}: {is_} instead of {should}" for group, (is_, should) in groups.items()]


def memory_rollup_faults(table: MemoryTable, history: History) -> list[str]:
    """What is wrong with the rollups of a table in memory."""
    wrong = []
    for name, rollup in table.rollups.items():
        choice = rollup.rollup.choice
        have: Groups = {tuple(map(_text, group)): sums for group, sums in rollup.current().items()}
        want = grouped(
            history.truth,
            lambda row, by=choice.by: tuple(row[column] for _, column in by),
            [lambda row, column=column: row[column] or 0 for _, column in choice.sums],
        )
        wrong += _differences(name, have, want)
    return wrong


def computed(history: History, read: Callable[[str], Sequence[Mapping[str, Any]]]) -> list[str]:
    """What is wrong with the rollups COMPUTED. ``read``: name of a rollup → the rows of its view."""
    rows = [row for row in history.truth if row["place"] % 3 != 1]  # type: ignore[operator]
    n, letters = (lambda row: row["n"]), (lambda row: None if row["big"] is None else len(row["big"].encode()))
    months = grouped(rows, lambda row: (row["day"].year * 100 + row["day"].month, row["tag"]), [n, letters])
    counted = grouped(
        [r for r in rows if r["n"] is not None], lambda r: (r["day"].year * 100 + r["day"].month, r["tag"]), []
    )
    for group, sums in months.items():
        sums.append(None if sums[1] is None else sums[1] / counted[group][0])
    have = {(r["month"], r["tag"]): [r["rows"], r["total"], r["letters"], r["mean"]] for r in read("by_month")}
    odd = grouped(history.truth, lambda row: (_remainder(row["place"]),), [lambda row: row["place"]])
    there = {(r["odd"],): [r["rows"], r["places"]] for r in read("by_place")}
    return _differences("by_month", have, months) + _differences("by_place", there, odd)


def _remainder(place: int) -> int:
    """Of a division that truncates, as ClickHouse's does."""
    return abs(place) % 2 * (1 if place >= 0 else -1)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
