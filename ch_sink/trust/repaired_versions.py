"""The versions that a repair writes.

A row is mended with the version that the table has of its key, or with that of the change that it lacks: every later
change has a higher one and wins, whenever it arrives. Of equal versions the later insert wins; where the engine does
not grant that, the row gets the next version. A row whose version leaves no room below that of the next change is left
alone, because that change would not win over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ch_sink.merge import version_column
from ch_sink.order import State, is_one_of_several, layout_for
from ch_sink.order.version import to_int, to_words
from ch_sink.pipeline.target import Target
from ch_sink.table.ddl import partition_in_sorting_key
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.chtype import in_utc
from ch_sink.types.column import Column
from ch_sink.types.sql import OWN, literal

__all__ = [
    "USED",
    "Ceilings",
    "D",
    "U",
    "ceiling_of",
    "counts",
    "is_free",
    "last_versions",
    "mark_version",
    "row_version",
    "too_new",
]

USED = f"{OWN}used"
"""Versions of all rows of a key in a collapsing table, also of those that are cancelled."""
D, U = f"{OWN}d", f"{OWN}u"
"""Names of a difference and of the `USED` versions of its key where they are joined with rows."""
_OF = f"{D}."
_FITS = f"v -> v >= 0 AND NOT has({U}.{USED}, v)"
"""Of a versioned collapsing table: a −1 must not cancel another row than its own."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest versions that a repair may write by itself, None if versions are no numbers."""

    row: int | None = None
    mark: int | None = None
    left: int | None = None
    """Of the mark at the place that a row leaves: changes which brought it there may come again."""

    @classmethod
    def of(cls, lowest: int | None, highest: int | None, *, knows_changes: bool) -> "Ceilings":
        """``lowest``, ``highest``: `ceiling_of` the last versions.

        ``knows_changes``: the rows have the versions of their changes, as the topic has them. Rows of the source may be
        of any change up to the next one.
        """
        return cls(highest, lowest) if knows_changes else cls(lowest, lowest, lowest)


def last_versions(target: Target, topic: str, states: Mapping[int, tuple[int, State]]) -> tuple[int, int] | None:
    """The lowest and the highest last version of all sources in all partitions; None if there is none.

    None as well if versions are times.

    ``states``: partition → the offset that the stream has reached, and its state there.
    """
    if not counts(target.table) or not states:
        return None
    alone = _has_one_source(topic, [state for _, state in states.values()])
    last = [v for offset, state in states.values() for v in _of_each_source(target, offset, state, alone=alone)]
    return min(last), max(last)


def _has_one_source(topic: str, states: Sequence[State]) -> bool:
    """Whether a topic is that of one database by its name, as connectors give it, and by what has come so far."""
    names = {name for state in states for name in (*state.names, *state.sources)}
    if len(names) != 1:
        return False
    connector, _, database = next(iter(names)).partition("/")
    return topic.startswith(f"{connector}.{database}.")


def _of_each_source(target: Target, offset: int, state: State, *, alone: bool) -> list[int]:
    """The last version of each source whose changes a partition has: their positions do not compare.

    ``alone``: no database is to come of which nothing has been seen.
    """
    if not offset:
        return [-1]  # the first change has 1, and what leaves its place by it 0
    last = [(state.epoch, offset - 1)]
    if state.strategy in ("", "source_position"):  # no change yet: its position may be below the offset
        last = [(s.epoch, s.commit) for s in state.sources.values()] or [(state.epoch, 0)]
        if not alone and any(is_one_of_several(name) for name in state.sources):
            last.append((state.epoch, 0))  # of a database that has sent nothing yet
    words = target.layout.pack(
        np.array([epoch for epoch, _ in last], dtype=np.int64),
        to_words([commit for _, commit in last]),
        np.full(len(last), offset - 1, dtype=np.int64),
        np.zeros(len(last), dtype=np.int64),
    )
    lifted = target.layout.lift(words, target.policy.versions.floor)
    return [to_int(lifted, at) for at in range(len(last))]


def ceiling_of(table: TargetTable, key: Sequence[str], last: int) -> int:
    """The highest version of a repaired row: above the last change, which may have been lost, and below the next one.

    The version of the next change's row is two above the last at the least: the one between is for a row that leaves
    its place. In a history with a key, a change that leaves values out takes them from the rows below that.

    ``last``: the version of the last change.
    """
    is_history = table.engine.family is Family.MERGE_TREE and bool(key)
    return max(last, 0) if is_history else last + 1


def too_new(table: TargetTable, highest: int | None) -> str:
    """The condition on differences whose versions leave no room for a repair; empty if versions are no numbers.

    ``highest``: `ceiling_of` the highest version of the stream.
    """
    if highest is None or not counts(table):
        return ""
    return f"toInt256OrZero(table_version) + {_step(table)} > toInt256({literal(str(highest))})"


def _step(table: TargetTable) -> int:
    """How far the version of a row of the source has to be above the one that the table has of its key."""
    family = table.engine.family
    columns = [c.name for c in table.columns]
    later_wins = family is Family.REPLACING and partition_in_sorting_key(
        table.partition_key, table.sorting_key, columns
    )
    return 0 if later_wins else 1


def counts(table: TargetTable) -> bool:
    """Whether versions are numbers that leave room for one more after each, not times."""
    name = version_column(table)
    column = table.column(name) if name else None
    return column is not None and layout_for(column.type).kind != "time"


def mark_version(table: TargetTable, version: str, ceilings: Ceilings) -> str:
    """The version of a delete row. Times have no room, and the later insert wins."""
    column = next(c for c in table.columns if c.name == version)
    if not counts(table):
        return _time(column, f"{D}.table_version")
    return f"CAST({_marks_version(table, _OF, ceilings.mark, ceilings.left)}, {literal(column.type)})"


def row_version(table: TargetTable, version: str, ceilings: Ceilings) -> str:
    """The version of a row of the source.

    The shadow knows no times. A row that the table lacks gets the lowest one, so that every later change wins.
    """
    column = next(c for c in table.columns if c.name == version)
    kind = column.type
    if not counts(table):
        return _time(column, f"if({D}.table_version = '', '1970-01-01 00:00:00', {D}.table_version)")
    if table.engine.family is Family.COLLAPSING:
        return f"CAST({_own_version(_OF, ceilings.row)}, {literal(kind)})"
    if table.engine.family is Family.VERSIONED_COLLAPSING:
        own = _own_version(_OF, ceilings.row)
        return f"CAST(arrayFirst({_FITS}, {_below(own)}), {literal(kind)})"
    return f"CAST({_rows_version(table, _OF, ceilings.row)}, {literal(kind)})"


def _time(column: Column, text: str) -> str:
    """A version that is a time, of its text as `Side.versions` gives it."""
    return f"CAST(CAST({text}, {literal(in_utc(column.type))}), {literal(column.type)})"


def _own_version(prefix: str, ceiling: int | None) -> str:
    """The version that a row of the source gets by itself: that of its change."""
    own = f"toInt256OrZero({prefix}source_version)"
    return own if ceiling is None else f"least({own}, toInt256({literal(str(ceiling))}))"


def _rows_version(table: TargetTable, prefix: str, ceiling: int | None) -> str:
    """The same, if the table has a row of the key that must not win."""
    above = f"if({prefix}table_version = '', 0, toInt256OrZero({prefix}table_version) + {_step(table)})"
    return f"greatest({_own_version(prefix, ceiling)}, {above})"


def _marks_version(table: TargetTable, prefix: str, ceiling: int | None, left: int | None) -> str:
    """The version of a delete row: not below that of the table's row, and above lost changes of a row that is gone."""
    above = f"toInt256OrZero({prefix}table_version) + {int(table.engine.family is Family.MERGE_TREE)}"
    if ceiling is None:
        return above
    # Where a mark and the row at its new place compete, the row's version is above that of the mark.
    kinds = "'extra'" if left is None or _step(table) else "'extra', 'different'"
    return f"greatest({above}, if({prefix}kind IN ({kinds}), toInt256({literal(str(ceiling))}), 0))"


def is_free(ceilings: Ceilings) -> str:
    """The condition on a difference `D` and its `USED` versions `U` that one is left for a row of the source."""
    return f"arrayExists({_FITS}, {_below(_own_version(_OF, ceilings.row))})"


def _below(own: str) -> str:
    """A version and as many below it as the key has used."""
    return f"arrayMap(i -> {own} - i, range(length({U}.{USED}) + 1))"
