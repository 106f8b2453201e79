"""The statements that make a table equal to its shadow, by engine."""

from collections.abc import Sequence

from ch_sink.merge import version_column
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.removal import ALL_ROWS
from ch_sink.trust.repaired_versions import USED, Ceilings, D, U, counts, is_free, mark_version, row_version
from ch_sink.trust.sides import KEY, TIMES, Side
from ch_sink.types.sql import OWN, literal, quote

__all__ = ["needs_stream", "no_version_left", "rows_move", "statements", "unmendable"]

_SIGN, _COPY = f"{OWN}sign", f"{OWN}copy"
_R, _T = f"{OWN}r", f"{OWN}t"
"""The rows to write, and the table's own."""


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
    if table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        return [_collapsed(source, target, differences, step, ceilings, kept)]
    gone = ("extra", "different") if rows_move(table, target.key) else ("extra",)
    out = [] if unmendable(table) else [_marked(target, differences, step, gone, ceilings)]
    return [*out, _rewritten(source, target, differences, step, ceilings, kept)]


def _marked(target: Side, differences: Differences, step: int, kinds: Sequence[str], ceilings: Ceilings) -> str:
    """Delete rows for the living rows of these keys."""
    table = target.table
    engine = table.engine
    columns = _stored(table)
    mark, value = _mark(table, deleted=True)
    version = version_column(table)
    names, values = list(columns), [f"{_R}.{quote(name)}" for name in columns]
    if version is not None:
        names.append(version)
        values.append(mark_version(table, version, ceilings))
    if engine.family is Family.MERGE_TREE:
        names.append("_op")
        values.append("'d'")
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
        names.append("_op")
        values.append("'r'")
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
    stored = [c.name for c in table.columns if c.stored and c.name != sign]
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
    defaults = {c.name: c.default_expression for c in table.columns if c.default_kind == "DEFAULT"}
    plus = ", ".join(
        f"{values[n]} AS {quote(n)}" if n in values else f"{defaults.get(n) or _empty(table, n)} AS {quote(n)}"
        for n in stored
    )
    # Where the source does not give what other columns are computed from, it is what an insert would take.
    inputs = [f"{c.default_expression} AS {quote(c.name)}" for c in table.ephemeral_columns if c.name not in filled]
    rows = source.live([*(quote(n) for n in filled), *inputs], differences.keys(step, ("missing", "different")))
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


def _stored(table: TargetTable) -> list[str]:
    return [c.name for c in table.stored_columns]


def _filled(source: Side, target: Side) -> list[str]:
    """Columns of the source's rows that the target has."""
    own = source.table.system_columns
    return [c.name for c in source.table.columns if c.name not in own and target.table.column(c.name) is not None]


def _empty(table: TargetTable, name: str) -> str:
    kind = next(c.type for c in table.columns if c.name == name)
    return f"defaultValueOfTypeName({literal(kind)})"


def _list(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)
