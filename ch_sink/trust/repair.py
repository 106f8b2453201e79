"""The statements that make a table equal to its shadow, by engine.

A row is mended with the version that the table has of its key, or with that of the change that it lacks: every later
change has a higher one and wins, whenever it arrives. Of equal versions the later insert wins; where the engine does
not grant that, the row gets the next version. A row whose version leaves no room below that of the next change is left
alone, because that change would not win over it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ch_sink.merge import version_column
from ch_sink.order import State, is_one_of_several, layout_for
from ch_sink.order.version import to_int, to_words
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.view import partition_in_sorting_key
from ch_sink.trust.differences import Differences
from ch_sink.trust.sides import KEY, TIMES, Side
from ch_sink.types.sql import literal, quote

_USED = "__used"
"""Versions of all rows of a key, also of those that are cancelled."""

__all__ = ["ceilings", "counts", "needs_stream", "statements", "too_new", "unmendable", "written_below"]


def ceilings(target: Target, states: Mapping[int, tuple[int, State]]) -> tuple[int, int] | None:
    """The lowest and the highest last version of all sources in all partitions; None if there is none.

    None as well if versions are times.

    ``states``: partition → the offset that the stream has reached, and its state there.
    """
    if not counts(target.table) or not states:
        return None
    last = [version for offset, state in states.values() for version in _last_versions(target, offset, state)]
    return min(last), max(last)


def _last_versions(target: Target, offset: int, state: State) -> list[int]:
    """The last version of each source whose changes a partition has: their positions do not compare."""
    if not offset:
        return [0]  # as the rows of a first load have
    last = [(state.epoch, offset - 1)]
    if state.strategy == "source_position":
        last = [(s.epoch, s.commit) for s in state.sources.values()] or [(state.epoch, 0)]
        if any(is_one_of_several(name) for name in state.sources):
            last.append((state.epoch, 0))  # of a database that has sent nothing yet
    words = target.layout.pack(
        np.array([epoch for epoch, _ in last], dtype=np.int64),
        to_words([commit for _, commit in last]),
        np.full(len(last), offset - 1, dtype=np.int64),
        np.zeros(len(last), dtype=np.int64),
    )
    lifted = target.layout.lift(words, target.policy.versions.floor)
    return [to_int(lifted, at) for at in range(len(last))]


def needs_stream(table: TargetTable) -> bool:
    """Whether nothing else may write to the table meanwhile: its rows are not ordered by versions."""
    replaces = table.engine.family in (Family.REPLACING, Family.MERGE_TREE)
    return not (replaces and version_column(table) is not None and table.sorting_key)


def unmendable(table: TargetTable) -> tuple[str, ...]:
    """Kinds of difference that the engine cannot be rid of."""
    engine = table.engine
    if engine.family is Family.REPLACING and not (engine.is_deleted_column or engine.sign_column):
        return ("extra",)
    return ()


def too_new(table: TargetTable, last: int | None) -> str:
    """The condition on differences whose versions leave no room for a repair; empty if versions are no numbers.

    ``last``: the highest version of the stream. That of the next change's row is two above at the least: the one
    between is for a row that leaves its place.
    """
    if last is None or not counts(table):
        return ""
    return f"toInt256OrZero(table_version) + {_step(table)} > toInt256({literal(str(last + 1))})"


def _step(table: TargetTable) -> int:
    """How far the version of a row of the source has to be above the one that the table has of its key."""
    family = table.engine.family
    columns = [c.name for c in table.columns]
    later_wins = family is Family.REPLACING and partition_in_sorting_key(
        table.partition_key, table.sorting_key, columns
    )
    return 0 if later_wins else 1


def statements(source: Side, target: Side, differences: Differences, step: int, ceiling: int | None) -> list[str]:
    """INSERT statements in order; each may be carried out once.

    ``ceiling``: the highest version that a row of the source may get, None if versions are no numbers.
    """
    table = target.table
    if table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        return [_collapsed(source, target, differences, step, ceiling)]
    if table.engine.family is Family.MERGE_TREE and not target.key:
        return [_counted(source, target, differences, step)]
    moves = bool({c.name for c in table.source_columns} & table.place_columns - set(target.key))
    gone = ("extra", "different") if moves else ("extra",)
    out = [] if unmendable(table) else [_marked(target, differences, step, gone, ceiling)]
    return [*out, _rewritten(source, target, differences, step, ceiling)]


def written_below(table: TargetTable, ceiling: int, last: int) -> str:
    """The condition on differences that are mended with no higher version than ``last``, the highest of the stream.

    ``ceiling``: see `statements`.
    """
    mark, row = _marks_version(table, "", ceiling), _rows_version(table, "", ceiling)
    return f"if(kind = 'extra', {mark}, {row}) <= toInt256({literal(str(last))})"


def _marked(target: Side, differences: Differences, step: int, kinds: Sequence[str], ceiling: int | None) -> str:
    """Delete rows for the living rows of these keys."""
    table = target.table
    engine = table.engine
    columns = _stored(table)
    mark, value = _mark(table, deleted=True)
    version = version_column(table)
    names, values = list(columns), [f"r.{quote(name)}" for name in columns]
    if version is not None:
        names.append(version)
        values.append(_gone(table, version, ceiling))
    if engine.family is Family.MERGE_TREE:
        names.append("_op")
        values.append("'d'")
    rows = target.live([*(quote(n) for n in columns)], differences.keys(step, kinds))
    return (
        f"INSERT INTO {table.qualified} ({_list([*names, mark])}) SELECT {', '.join(values)}, {value} "
        f"FROM ({rows}) AS r INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY}"
    )


def _rewritten(source: Side, target: Side, differences: Differences, step: int, ceiling: int | None) -> str:
    """The source's rows for keys that are missing or different."""
    table = target.table
    columns = _filled(source, target)
    names, values = list(columns), [f"r.{quote(name)}" for name in columns]
    version = version_column(table)
    if version is not None:
        names.append(version)
        values.append(_fresh(table, version, ceiling))
    if table.engine.family is not Family.REPLACING or table.engine.is_deleted_column or table.engine.sign_column:
        mark, value = _mark(table, deleted=False)
        names.append(mark)
        values.append(value)
    if table.engine.family is Family.MERGE_TREE:
        names.append("_op")
        values.append("'r'")
    rows = source.live([quote(n) for n in columns], differences.keys(step, ("missing", "different")))
    return (
        f"INSERT INTO {table.qualified} ({_list(names)}) SELECT {', '.join(values)} "
        f"FROM ({rows}) AS r INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY}"
    )


def _collapsed(source: Side, target: Side, differences: Differences, step: int, ceiling: int | None) -> str:
    """−1 for every stored row of these keys, then +1 for the source's rows, as one insert."""
    table = target.table
    sign, version = table.engine.sign_column or "_sign", version_column(table)
    stored = [c.name for c in table.columns if c.insertable and c.default_kind != "EPHEMERAL" and c.name != sign]
    inner = (
        f"SELECT {_list(stored)}, sum(toInt64({quote(sign)})) AS {TIMES} FROM {table.qualified} "
        f"WHERE {target.key_hash} IN ({differences.keys(step)}) GROUP BY {_list(stored)} HAVING {TIMES} != 0"
    )
    minus = (
        f"SELECT {_list(stored)}, toInt8(-sign({TIMES})) AS __sign "
        f"FROM ({inner}) ARRAY JOIN range(toUInt64(abs({TIMES}))) AS __copy"
    )
    filled = _filled(source, target)
    values = {name: f"r.{quote(name)}" for name in filled}
    if version is not None:
        values[version] = _fresh(table, version, ceiling)
    defaults = {c.name: c.default_expression for c in table.columns if c.default_kind == "DEFAULT"}
    plus = ", ".join(
        f"{values[n]} AS {quote(n)}" if n in values else f"{defaults.get(n) or _empty(table, n)} AS {quote(n)}"
        for n in stored
    )
    rows = source.live([quote(n) for n in filled], differences.keys(step, ("missing", "different")))
    versions = f"toInt256({quote(version)})" if version is not None and counts(table) else "toInt256(0)"
    used = (
        f"SELECT {target.key_hash} AS {KEY}, groupUniqArray({versions}) AS {_USED} FROM {table.qualified} "
        f"WHERE {target.key_hash} IN ({differences.keys(step)}) GROUP BY {KEY}"
    )
    return (
        f"INSERT INTO {table.qualified} ({_list([*stored, sign])}) SELECT {_list(stored)}, __sign FROM ({minus} "
        f"UNION ALL SELECT {plus}, toInt8(1) AS __sign FROM ({rows}) AS r "
        f"INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY} "
        f"LEFT JOIN ({used}) AS u ON r.{KEY} = u.{KEY}) ORDER BY __sign"
    )


def _counted(source: Side, target: Side, differences: Differences, step: int) -> str:
    """Rows without a key: as many as the source has more, or a −1 for each that it has less."""
    table = target.table
    columns, version = _filled(source, target), version_column(table)
    names = ["_op", *([version] if version else []), *columns, table.engine.sign_column or "_sign"]
    bare = [quote(name) for name in columns]
    sides = " UNION ALL ".join(
        f"SELECT {', '.join(bare)}, {KEY} FROM ({one.live(bare, differences.keys(step))})" for one in (source, target)
    )
    newest = [_last(table, version)] if version else []
    values = ", ".join([*newest, *(f"r.{name}" for name in bare)])
    return (
        f"INSERT INTO {table.qualified} ({_list(names)}) "
        f"SELECT if(d.source_times > d.table_times, 'r', 'd'), {values}, toInt8(sign(d.source_times - d.table_times)) "
        f"FROM (SELECT * FROM ({sides}) LIMIT 1 BY {KEY}) "
        f"AS r INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY} "
        "ARRAY JOIN range(toUInt64(abs(d.source_times - d.table_times))) AS __copy"
    )


def counts(table: TargetTable) -> bool:
    """Whether versions are numbers that leave room for one more after each, not times."""
    name = version_column(table)
    column = table.column(name) if name else None
    return column is not None and layout_for(column.type).kind != "time"


def _gone(table: TargetTable, version: str, ceiling: int | None) -> str:
    """The version of a delete row. Times have no room, and the later insert wins."""
    kind = next(c.type for c in table.columns if c.name == version)
    return f"CAST({_marks_version(table, 'd.', ceiling) if counts(table) else 'd.table_version'}, {literal(kind)})"


def _fresh(table: TargetTable, version: str, ceiling: int | None) -> str:
    """The version of a row of the source.

    The shadow knows no times. A row that the table lacks gets the lowest one, so that every later change wins.
    """
    kind = next(c.type for c in table.columns if c.name == version)
    if not counts(table):
        return f"CAST(if(d.table_version = '', '1970-01-01 00:00:00', d.table_version), {literal(kind)})"
    if table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        return f"CAST({_unused(_own_version('d.', ceiling))}, {literal(kind)})"
    return f"CAST({_rows_version(table, 'd.', ceiling)}, {literal(kind)})"


def _own_version(prefix: str, ceiling: int | None) -> str:
    """The version that a row of the source gets by itself: that of its change."""
    own = f"toInt256OrZero({prefix}source_version)"
    return own if ceiling is None else f"least({own}, toInt256({literal(str(ceiling))}))"


def _rows_version(table: TargetTable, prefix: str, ceiling: int | None) -> str:
    """The same, if the table has a row of the key that must not win."""
    above = f"if({prefix}table_version = '', 0, toInt256OrZero({prefix}table_version) + {_step(table)})"
    return f"greatest({_own_version(prefix, ceiling)}, {above})"


def _marks_version(table: TargetTable, prefix: str, ceiling: int | None) -> str:
    """The version of a delete row: not below that of the table's row, and above lost changes of a row that is gone."""
    above = f"toInt256OrZero({prefix}table_version) + {int(table.engine.family is Family.MERGE_TREE)}"
    if ceiling is None:
        return above
    return f"greatest({above}, if({prefix}kind = 'extra', toInt256({literal(str(ceiling))}), 0))"


def _unused(own: str) -> str:
    """The highest version up to this one that no row of the key has: a −1 must not cancel another row than its own."""
    fits = f"v -> v >= 0 AND NOT has(u.{_USED}, v)"
    below = f"arrayMap(i -> {own} - i, range(length(u.{_USED}) + 1))"
    return f"if(arrayExists({fits}, {below}), arrayFirst({fits}, {below}), arrayMax(u.{_USED}) + 1)"


def _last(table: TargetTable, version: str) -> str:
    """The higher of both versions of a row."""
    kind = next(c.type for c in table.columns if c.name == version)
    return f"CAST(greatest(toInt256OrZero(d.source_version), toInt256OrZero(d.table_version)), {literal(kind)})"


def _mark(table: TargetTable, *, deleted: bool) -> tuple[str, str]:
    """The column that marks deleted rows, and its value."""
    if table.engine.is_deleted_column:
        return table.engine.is_deleted_column, str(int(deleted))
    return table.engine.sign_column or "_sign", "-1" if deleted else "1"


def _stored(table: TargetTable) -> list[str]:
    return [c.name for c in table.source_columns if c.default_kind != "EPHEMERAL"]


def _filled(source: Side, target: Side) -> list[str]:
    """Columns of the source's rows that the target has."""
    own = source.table.system_columns
    return [c.name for c in source.table.columns if c.name not in own and target.table.column(c.name) is not None]


def _empty(table: TargetTable, name: str) -> str:
    kind = next(c.type for c in table.columns if c.name == name)
    return f"defaultValueOfTypeName({literal(kind)})"


def _list(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)
