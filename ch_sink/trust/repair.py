"""The statements that make a table equal to its shadow, by engine."""

from collections.abc import Sequence

from ch_sink.merge import version_column
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.repaired_versions import USED, counts, is_free, mark_version, row_version
from ch_sink.trust.sides import KEY, TIMES, Side
from ch_sink.types.sql import literal, quote

__all__ = ["needs_stream", "no_version_left", "statements", "unmendable"]


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
        values.append(mark_version(table, version, ceiling))
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
        values.append(row_version(table, version, ceiling))
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
        values[version] = row_version(table, version, ceiling)
    defaults = {c.name: c.default_expression for c in table.columns if c.default_kind == "DEFAULT"}
    plus = ", ".join(
        f"{values[n]} AS {quote(n)}" if n in values else f"{defaults.get(n) or _empty(table, n)} AS {quote(n)}"
        for n in stored
    )
    rows = source.live([quote(n) for n in filled], differences.keys(step, ("missing", "different")))
    return (
        f"INSERT INTO {table.qualified} ({_list([*stored, sign])}) SELECT {_list(stored)}, __sign FROM ({minus} "
        f"UNION ALL SELECT {plus}, toInt8(1) AS __sign FROM ({rows}) AS r "
        f"INNER JOIN ({differences.rows(step)}) AS d ON r.{KEY} = d.{KEY} "
        f"LEFT JOIN ({_used(target, differences, step)}) AS u ON r.{KEY} = u.{KEY}) ORDER BY __sign"
    )


def _used(target: Side, differences: Differences, step: int) -> str:
    """The versions of all rows of each key."""
    table = target.table
    version = version_column(table)
    versions = f"toInt256({quote(version)})" if version is not None and counts(table) else "toInt256(0)"
    return (
        f"SELECT {target.key_hash} AS {KEY}, groupUniqArray({versions}) AS {USED} FROM {table.qualified} "
        f"WHERE {target.key_hash} IN ({differences.keys(step)}) GROUP BY {KEY}"
    )


def no_version_left(target: Side, differences: Differences, step: int, ceiling: int | None) -> str:
    """The condition on differences whose keys have used all versions below the next change; empty if they cannot."""
    table = target.table
    if table.engine.family is not Family.VERSIONED_COLLAPSING or not counts(table):
        return ""
    return (
        f"{KEY} IN (SELECT d.{KEY} FROM ({differences.rows(step)}) AS d "
        f"INNER JOIN ({_used(target, differences, step)}) AS u ON d.{KEY} = u.{KEY} "
        f"WHERE d.kind != 'extra' AND NOT {is_free(ceiling)})"
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
