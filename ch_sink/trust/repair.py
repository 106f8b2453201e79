"""The statements that make a table equal to its shadow, by engine.

A row is mended with the version after the one that the table has of its key, or with the version of the change that it
lacks: every later change has a higher one and wins, whenever it arrives. A row whose version lies above everything that
the stream has written is left alone, because no later change would win over it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ch_sink.merge import version_column
from ch_sink.order import State, layout_for
from ch_sink.order.version import to_int, to_words
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.sides import KEY, TIMES, Side
from ch_sink.types.sql import literal, quote

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


def too_new(table: TargetTable, ceiling: int | None) -> str:
    """The condition on differences whose versions lie above the ceiling; empty if versions are no numbers."""
    if ceiling is None or not counts(table):
        return ""
    return f"toInt256OrZero(table_version) > toInt256({literal(str(ceiling))})"


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
    return [*out, _rewritten(source, target, differences, step, ceiling, 2 if moves else 1)]


def written_below(limits: tuple[int, int]) -> str:
    """The condition on differences that are mended with no higher version than the highest one of the stream.

    ``limits``: the highest version that a row of the source gets by itself, and that one.
    """
    low, high = (f"toInt256({literal(str(limit))})" for limit in limits)
    above = "if(table_version = '', 0, toInt256OrZero(table_version) + 1)"
    own = f"if(kind = 'extra', {low}, least(toInt256OrZero(source_version), {low}))"
    return f"greatest({own}, {above}) <= {high}"


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


def _rewritten(source: Side, target: Side, differences: Differences, step: int, ceiling: int | None, after: int) -> str:
    """The source's rows for keys that are missing or different."""
    table = target.table
    columns = _filled(source, target)
    names, values = list(columns), [f"r.{quote(name)}" for name in columns]
    version = version_column(table)
    if version is not None:
        names.append(version)
        values.append(_fresh(table, version, ceiling, after))
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
        values[version] = _fresh(table, version, ceiling, 1)
    defaults = {c.name: c.default_expression for c in table.columns if c.default_kind == "DEFAULT"}
    plus = ", ".join(
        f"{values[n]} AS {quote(n)}" if n in values else f"{defaults.get(n) or _empty(table, n)} AS {quote(n)}"
        for n in stored
    )
    rows = source.live([quote(n) for n in filled], differences.keys(step, ("missing", "different")))
    return (
        f"INSERT INTO {table.qualified} ({_list([*stored, sign])}) SELECT {_list(stored)}, __sign FROM ({minus} "
        f"UNION ALL SELECT {plus}, toInt8(1) AS __sign FROM ({rows}) AS r "
        f"INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY}) ORDER BY __sign"
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
    """The version of a delete row: after the one that the table has, and above lost changes of a row that is gone.

    Times have no room, and the later insert wins.
    """
    kind = next(c.type for c in table.columns if c.name == version)
    if not counts(table):
        return f"CAST(d.table_version, {literal(kind)})"
    after = "toInt256OrZero(d.table_version) + 1"
    if ceiling is not None:
        after = f"greatest({after}, if(d.kind = 'extra', toInt256({literal(str(ceiling))}), 0))"
    return f"CAST({after}, {literal(kind)})"


def _fresh(table: TargetTable, version: str, ceiling: int | None, after: int) -> str:
    """The version of a row of the source: that of its change, above the one that the table has.

    The shadow knows no times. A row that the table lacks gets the lowest one, so that every later change wins.
    """
    kind = next(c.type for c in table.columns if c.name == version)
    if not counts(table):
        return f"CAST(if(d.table_version = '', '1970-01-01 00:00:00', d.table_version), {literal(kind)})"
    own = "toInt256OrZero(d.source_version)"
    if ceiling is not None:
        own = f"least({own}, toInt256({literal(str(ceiling))}))"
    above = f"if(d.table_version = '', 0, toInt256OrZero(d.table_version) + {after})"
    return f"CAST(greatest({own}, {above}), {literal(kind)})"


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
