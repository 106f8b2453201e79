"""The statements that make a table equal to its shadow, by engine, and the versions that they write.

A row is repaired with the version that the table has of its key, or with that of the change that it lacks: every later
change has a higher one and wins, whenever it arrives. Of equal versions the later insert wins; where the engine does
not grant that, the row gets the next version. A row whose version leaves no room below that of the next change is left
alone, because that change would not win over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ch_sink.merge.resolved import version_column
from ch_sink.order import State, is_one_of_several, layout_for
from ch_sink.order.version import to_int, to_words
from ch_sink.pipeline.target import Target
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable
from ch_sink.table.views import partition_in_sorting_key
from ch_sink.trust.differences import Differences
from ch_sink.trust.own_tables import ALL_ROWS
from ch_sink.trust.sides import KEY, TIMES, Side
from ch_sink.types.chtype import in_utc
from ch_sink.types.column import Column
from ch_sink.types.sql import OWN, literal, quote

USED = f"{OWN}used"
"""Versions of all rows of a key in a collapsing table, also of those that are cancelled."""
D, U = f"{OWN}d", f"{OWN}u"
"""Names of a difference and of the `USED` versions of its key where they are joined with rows."""
_FITS = f"v -> v >= 0 AND NOT has({U}.{USED}, v)"
"""Of a versioned collapsing table: a −1 must not cancel another row than its own."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest versions that a repair may write by itself, None if versions are not numbers."""

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
        return [v - 1 for v in _versions(target, [(state.epoch, 0)], 0, half=0)]  # below all that is to come
    last = [(state.epoch, offset - 1)]
    if state.strategy in ("", "source_position"):  # no change yet: its position may be below the offset
        last = [(s.epoch, s.commit) for s in state.sources.values()] or [(state.epoch, 0)]
        if not alone and any(is_one_of_several(name) for name in state.sources):
            last.append((state.epoch, 0))  # of a database that has sent nothing yet
    return _versions(target, last, offset - 1)


def _versions(target: Target, places: Sequence[tuple[int, int]], offset: int, half: int = 1) -> list[int]:
    """The versions of changes of these epochs and commit positions at an offset."""
    words = target.layout.pack(
        np.array([epoch for epoch, _ in places], dtype=np.int64),
        to_words([commit for _, commit in places]),
        np.full(len(places), offset, dtype=np.int64),
        np.zeros(len(places), dtype=np.int64),
        half,
    )
    return [to_int(words, at) for at in range(len(places))]


def ceiling_of(table: TargetTable, key: Sequence[str], last: int) -> int:
    """The highest version of a repaired row: above the last change, which may have been lost, and below the next one.

    The version of the next change's row is two above the last at the least: the one between is for a row that leaves
    its place. In a history with a key, a change that leaves values out takes them from the rows below that.

    ``last``: the version of the last change.
    """
    is_history = table.engine.family is Family.MERGE_TREE and bool(key)
    return max(last, 0) if is_history else last + 1


def too_new(table: TargetTable, highest: int | None) -> str:
    """The condition on differences whose versions leave no room for a repair; empty if versions are not numbers.

    ``highest``: `ceiling_of` the highest version of the stream.
    """
    if highest is None or not counts(table):
        return ""
    return f"toInt256OrZero(table_version) + {_step(table)} > toInt256({literal(str(highest))})"


def _step(table: TargetTable) -> int:
    """The distance by which the version of a row of the source has to exceed the table's version of its key."""
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
    """The version of a delete row: not below that of the table's row, and above lost changes of a row that is gone.

    Times have no room, and the later insert wins.
    """
    column = next(c for c in table.columns if c.name == version)
    if not counts(table):
        return _time(column, f"{D}.table_version")
    own = f"toInt256OrZero({D}.table_version) + {int(table.engine.family is Family.MERGE_TREE)}"
    if ceilings.mark is not None:
        # Where a mark and the row at its new place compete, the row's version is above that of the mark.
        kinds = "'extra'" if ceilings.left is None or _step(table) else "'extra', 'different'"
        own = f"greatest({own}, if({D}.kind IN ({kinds}), toInt256({literal(str(ceilings.mark))}), 0))"
    return f"CAST({own}, {literal(column.type)})"


def row_version(table: TargetTable, version: str, ceilings: Ceilings) -> str:
    """The version of a row of the source.

    The shadow knows no times. A row that the table lacks gets the lowest one, so that every later change wins.
    """
    column = next(c for c in table.columns if c.name == version)
    if not counts(table):
        return _time(column, f"if({D}.table_version = '', '1970-01-01 00:00:00', {D}.table_version)")
    own = _own_version(ceilings)
    if table.engine.family is Family.VERSIONED_COLLAPSING:
        own = f"arrayFirst({_FITS}, {_below(own)})"
    elif table.engine.family is not Family.COLLAPSING:  # the table may have a row of the key that must not win
        above = f"if({D}.table_version = '', 0, toInt256OrZero({D}.table_version) + {_step(table)})"
        own = f"greatest({own}, {above})"
    return f"CAST({own}, {literal(column.type)})"


def _time(column: Column, text: str) -> str:
    """A version that is a time, of its text as `Side.versions` gives it."""
    return f"CAST(CAST({text}, {literal(in_utc(column.type))}), {literal(column.type)})"


def _own_version(ceilings: Ceilings) -> str:
    """The version that a row of the source gets by itself: that of its change."""
    own = f"toInt256OrZero({D}.source_version)"
    return own if ceilings.row is None else f"least({own}, toInt256({literal(str(ceilings.row))}))"


def is_free(ceilings: Ceilings) -> str:
    """The condition on a difference `D` and its `USED` versions `U` that one is left for a row of the source."""
    return f"arrayExists({_FITS}, {_below(_own_version(ceilings))})"


def _below(own: str) -> str:
    """A version and as many below it as the key has used."""
    return f"arrayMap(i -> {own} - i, range(length({U}.{USED}) + 1))"


_SIGN, _COPY = f"{OWN}sign", f"{OWN}copy"
_R, _T = f"{OWN}r", f"{OWN}t"
"""The rows to write, and the table's own."""


def needs_stream(table: TargetTable) -> bool:
    """Whether nothing else may write to the table meanwhile: its rows are not ordered by versions."""
    replaces = table.engine.family in (Family.REPLACING, Family.MERGE_TREE)
    return not (replaces and version_column(table) is not None and table.sorting_key)


def unremovable(table: TargetTable) -> tuple[str, ...]:
    """Kinds of difference that the engine cannot be rid of."""
    engine = table.engine
    if engine.family is Family.REPLACING and not (engine.is_deleted_column or engine.sign_column):
        return ("extra",)
    return ()


def rows_move(table: TargetTable, key: Sequence[str]) -> bool:
    """Whether a row whose values change may leave its place, where it has to be marked as deleted."""
    replaces = table.engine.family is Family.REPLACING
    return replaces and bool({c.name for c in table.source_columns} & table.deciding_columns(key))


def statements(
    source: Side, target: Side, differences: Differences, step: int, ceilings: Ceilings, kept: Sequence[str] = ()
) -> list[str]:
    """INSERT statements in order; each may be carried out once.

    ``kept``: columns whose values the source does not give. Rows that differ keep those of the table; rows that the
    table lacks are not among the differences, nor any that may leave their place.
    """
    table = target.table
    if table.engine.family.collapses:
        return [_collapsed(source, target, differences, step, ceilings, kept)]
    gone = ("extra", "different") if rows_move(table, target.key) else ("extra",)
    out = [] if unremovable(table) else [_marked(target, differences, step, gone, ceilings)]
    return [*out, _rewritten(source, target, differences, step, ceilings, kept)]


def _marked(target: Side, differences: Differences, step: int, kinds: Sequence[str], ceilings: Ceilings) -> str:
    """Delete rows for the living rows of these keys."""
    table = target.table
    engine = table.engine
    columns = [c.name for c in table.source_columns]
    mark, value = _mark(table, deleted=True)
    version = version_column(table)
    names, values = list(columns), [f"{_R}.{quote(name)}" for name in columns]
    if version is not None:
        names.append(version)
        values.append(mark_version(table, version, ceilings))
    if engine.family is Family.MERGE_TREE:
        names += ["_op", *_since(table)]
        values += ["'d'", *_since(table).values()]
    rows = target.live([*(quote(n) for n in columns)], differences.keys(step, kinds))
    return (
        f"INSERT INTO {table.qualified} ({_list([*names, mark])}) SELECT {', '.join(values)}, {value} "
        f"FROM ({rows}) AS {_R} INNER JOIN ({differences.rows(step)}) AS {D} ON {_R}.{KEY} = {D}.{KEY}"
    )


def _rewritten(
    source: Side, target: Side, differences: Differences, step: int, ceilings: Ceilings, kept: Sequence[str]
) -> str:
    """The source's rows for keys that are missing or different."""
    table = target.table
    columns = _filled(source, target)
    names, values = (
        [*columns, *kept],
        [*(f"{_R}.{quote(name)}" for name in columns), *(f"{_T}.{quote(n)}" for n in kept)],
    )
    version = version_column(table)
    if version is not None:
        names.append(version)
        values.append(row_version(table, version, ceilings))
    if table.engine.family is not Family.REPLACING or table.engine.is_deleted_column or table.engine.sign_column:
        mark, value = _mark(table, deleted=False)
        names.append(mark)
        values.append(value)
    if table.engine.family is Family.MERGE_TREE:
        names += ["_op", *_since(table)]
        values += ["'r'", *_since(table).values()]
    rows = source.live([quote(n) for n in columns], differences.keys(step, ("missing", "different")))
    return (
        f"INSERT INTO {table.qualified} ({_list(names)}) SELECT {', '.join(values)} "
        f"FROM ({rows}) AS {_R} INNER JOIN ({differences.rows(step)}) AS {D} ON {_R}.{KEY} = {D}.{KEY}"
        f"{_with_kept(target, differences, step, kept)}"
    )


def _with_kept(target: Side, differences: Differences, step: int, kept: Sequence[str]) -> str:
    """Joins the table's rows of the keys that differ, as `_T`."""
    if not kept:
        return ""
    rows = target.live([quote(name) for name in kept], differences.keys(step, ("different",)))
    return f" INNER JOIN (SELECT * FROM ({rows}) LIMIT 1 BY {KEY}) AS {_T} ON {_R}.{KEY} = {_T}.{KEY}"


def _collapsed(
    source: Side, target: Side, differences: Differences, step: int, ceilings: Ceilings, kept: Sequence[str]
) -> str:
    """−1 for every stored row of these keys, then +1 for the source's rows, as one insert."""
    table = target.table
    sign, version = table.engine.sign_column or "_sign", version_column(table)
    stored = [c.name for c in table.columns if c.insertable and c.name != sign]
    inner = (
        f"SELECT {_list(stored)}, sum(toInt64({quote(sign)})) AS {TIMES} FROM {table.qualified} "
        f"WHERE {target.is_among(differences.keys(step))} GROUP BY {_list(stored)} HAVING {TIMES} != 0"
    )
    minus = (
        f"SELECT {_list(stored)}, toInt8(-sign({TIMES})) AS {_SIGN} "
        f"FROM ({inner}) ARRAY JOIN range(toUInt64(abs({TIMES}))) AS {_COPY}"
    )
    filled = _filled(source, target)
    values = {name: f"{_R}.{quote(name)}" for name in filled} | {name: f"{_T}.{quote(name)}" for name in kept}
    if version is not None:
        values[version] = row_version(table, version, ceilings)
    empty = {c.name: f"defaultValueOfTypeName({literal(c.type)})" for c in table.columns}
    defaults = {c.name: c.default_expression for c in table.columns if c.default_kind == "DEFAULT"}
    plus = ", ".join(f"{values.get(n) or defaults.get(n) or empty[n]} AS {quote(n)}" for n in stored)
    rows = source.live([*(quote(n) for n in filled)], differences.keys(step, ("missing", "different")))
    return (
        f"INSERT INTO {table.qualified} ({_list([*stored, sign])}) SELECT {_list(stored)}, {_SIGN} FROM ({minus} "
        f"UNION ALL SELECT {plus}, toInt8(1) AS {_SIGN} FROM ({rows}) AS {_R} "
        f"INNER JOIN ({differences.rows(step)}) AS {D} ON {_R}.{KEY} = {D}.{KEY}"
        f"{_with_kept(target, differences, step, kept)} "
        f"LEFT JOIN ({_used(target, differences, step)}) AS {U} ON {_R}.{KEY} = {U}.{KEY}) ORDER BY {_SIGN}"
    )


def _used(target: Side, differences: Differences, step: int) -> str:
    """The versions of all rows of each key."""
    table = target.table
    version = version_column(table)
    versions = f"toInt256({quote(version)})" if version is not None and counts(table) else "toInt256(0)"
    return (
        f"SELECT {target.key_hash} AS {KEY}, groupUniqArray({versions}) AS {USED} FROM {table.qualified} "
        f"WHERE {target.is_among(differences.keys(step))} GROUP BY {KEY} {ALL_ROWS}"
    )


def no_version_left(target: Side, differences: Differences, step: int, ceilings: Ceilings) -> str:
    """The condition on differences whose keys have used all versions below the next change; empty if they cannot."""
    table = target.table
    if table.engine.family is not Family.VERSIONED_COLLAPSING or not counts(table):
        return ""
    return (
        f"{KEY} IN (SELECT {D}.{KEY} FROM ({differences.rows(step)}) AS {D} "
        f"INNER JOIN ({_used(target, differences, step)}) AS {U} ON {D}.{KEY} = {U}.{KEY} "
        f"WHERE {D}.kind != 'extra' AND NOT {is_free(ceilings)})"
    )


def _mark(table: TargetTable, *, deleted: bool) -> tuple[str, str]:
    """The column that marks deleted rows, and its value."""
    if table.engine.is_deleted_column:
        return table.engine.is_deleted_column, str(int(deleted))
    return table.engine.sign_column or "_sign", "-1" if deleted else "1"


def _since(table: TargetTable) -> dict[str, str]:
    """The column of times with that of a repaired row: from now on it is known to be so."""
    return {SOURCE_TIME: "now64(3)"} if table.column(SOURCE_TIME) is not None else {}


def _filled(source: Side, target: Side) -> list[str]:
    """Columns of the source's rows that the target has."""
    own = source.table.system_columns
    return [c.name for c in source.table.columns if c.name not in own and target.table.column(c.name) is not None]


def _list(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)
