"""Each rollup of a table against GROUP BY over the rows that it sums up.

Nothing is locked. A stream adds a difference to its rollups before the table has it, so a group that differs is looked
at again: what is on its way has another difference then, and what stays the same is one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.rollups import fill_rollups
from ch_sink.errors import ClickHouseError
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import Rollup
from ch_sink.trust.sides import Side
from ch_sink.trust.subject import Subject

_LOOKS = 5
_PAUSE = 0.3
"""Seconds between two looks: most inserts of a difference take less."""
_MOST = 100_000
_UNKNOWN_TABLE = 60


@dataclass(frozen=True, slots=True)
class RolledUp:
    """The result of comparing one rollup."""

    rollup: str
    groups: int
    """Groups of the rollup that have rows."""
    different: int = 0
    examples: tuple[Mapping[str, Any], ...] = field(default=())
    """Groups that differ, each with what the rollup has more than the rows: the values of ``by``, then the sums."""
    missing: bool = False
    """There is no such table yet."""

    def as_json(self) -> dict[str, Any]:
        return {
            "rollup": self.rollup,
            "groups": self.groups,
            "different": self.different,
            "examples": [{name: str(value) for name, value in example.items()} for example in self.examples],
        }

    @property
    def lines(self) -> list[str]:
        """The result for the console."""
        if self.missing:
            return [f"  rollup {self.rollup} does not exist: the job creates it when it opens the stream"]
        if not self.different:
            return [f"  rollup {self.rollup}: {self.groups} groups, equal"]
        head = f"  rollup {self.rollup}: {self.different} of {self.groups} groups differ"
        shown = (", ".join(f"{name}={value!s}" for name, value in example.items()) for example in self.examples)
        return [head, *(f"    {example}" for example in shown)]


def rolled_up(
    client: Client, rollups: Sequence[Rollup], table: TargetTable, key: tuple[str, ...], examples: int
) -> tuple[RolledUp, ...]:
    """Compare rollups with the living rows of a table that has the columns of theirs. Raises ClickHouseError."""
    return tuple(_compared(client, one, Side(table, key, table.columns), examples) for one in rollups)


def refilled(subject: Subject, say: Callable[[str], None]) -> None:
    """Fill the stream's rollups from its table, under the claim that a command holds. Raises ChSinkError."""
    if not subject.rollups:
        return
    say("filling the rollups")
    topic, ledger = subject.topic.state(subject.settings.topic), subject.ledger
    claim, table = ledger.owner(), replace(subject.table, rollups=subject.rollups)

    def supersede() -> list[Fence]:
        return [ledger.begin(topic.topic_id, p, claim, "rollups") for p in sorted(topic.low)]

    fill_rollups(subject.client, table, supersede, doubtful=True)


def _compared(client: Client, rollup: Rollup, side: Side, examples: int) -> RolledUp:
    def ask(sql: str) -> list[dict[str, Any]]:
        return client.rows(sql, settings=EVERY_TYPE, of=side.table, doing=f"compare rollup {rollup.choice.name}")

    try:
        [counted] = ask(f"SELECT count() AS n FROM ({rollup.groups})")
    except ClickHouseError as error:
        if error.code != _UNKNOWN_TABLE:
            raise
        return RolledUp(rollup.choice.name, 0, 1, missing=True)
    difference = f"{rollup.difference(f'({side.plain(rollup.used)})')} LIMIT {_MOST}"
    found = _by_values(ask(difference))
    for _ in range(_LOOKS if found else 0):
        time.sleep(_PAUSE)
        again = _by_values(ask(difference))
        found = {values: row for values, row in found.items() if values in again}
    shown = tuple(found.values())[:examples]
    return RolledUp(rollup.choice.name, int(counted["n"]), len(found), shown)


def _by_values(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {repr(list(row.values())): row for row in rows}
