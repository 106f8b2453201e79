"""The table partition of each row, found on the client: one insert then is one block and one part.

Covers the usual expressions; for the others the answer is None and the server divides the block. Never guesses:
where ClickHouse's own result would leave the range of its type (a Date before 1970, say), the answer is None.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import TableError
from ch_sink.table.expression import Call, ColumnRef, Expression, Literal, parse_expression
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.arrow import python_values
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.sql import columns_in, literal

_DAY = 86_400
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

CALENDAR = frozenset(
    (
        "toYear",
        "toYYYYMM",
        "toYYYYMMDD",
        "toDate",
        "toMonday",
        "toStartOfYear",
        "toStartOfQuarter",
        "toStartOfMonth",
        "toStartOfWeek",
        "toStartOfDay",
        "toStartOfHour",
    )
)
"""Functions that :func:`calendar_value` knows."""

_NUMBERS = frozenset(("toYear", "toYYYYMM", "toYYYYMMDD"))
_TO_TIME = frozenset(("toStartOfDay", "toStartOfHour"))


@dataclass(frozen=True, slots=True)
class Moment:
    """Points in time: days since 1970 (``unit`` 86400) or seconds since 1970 (``unit`` 1), 0 if ``null``."""

    values: npt.NDArray[np.int64]
    unit: int
    null: npt.NDArray[np.bool_] | None

    @property
    def days(self) -> npt.NDArray[np.int64]:
        return self.values if self.unit == _DAY else self.values // _DAY

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        return self.values * self.unit


def refuse_floats(table: TargetTable) -> None:
    """Raises TableError for a table partitioned by a float: of -0.0 and 0.0 the server makes one partition or two.

    It depends on whether they come in one block, so that a delete or a −1 may not meet its row. The server takes such a
    key with a setting of the table only; one that a float is but an input of is another matter.
    """
    allowed = dict(table.settings).get("allow_floating_point_partition_key", "0") != "0"
    if table.engine.family is Family.MERGE_TREE or not allowed:
        return
    floats = {c.name for c in table.columns if parse_type(c.type).bare.name.startswith(("Float", "BFloat"))}
    if found := columns_in(table.partition_key or "tuple()", floats):
        raise TableError(
            f"{table.qualified} is partitioned by {table.partition_key}, and {min(found)!r} is a float: rows with -0.0 "
            "and 0.0 may be in one partition or in two",
            hint="Recreate the table with a PARTITION BY of other columns (`ch_sink init`).",
        )


def moment_of(array: pa.Array, kind: ChType) -> Moment | None:
    """An Arrow column inserted into a Date, Date32, DateTime or DateTime64 column; None for other types.

    Numbers are taken as the server takes them: days for dates, seconds for DateTime.
    """
    null = np.asarray(array.is_null()) if array.null_count else None
    if kind.name not in ("Date", "Date32", "DateTime", "DateTime64"):
        return None
    dated = kind.name in ("Date", "Date32")
    if pa.types.is_timestamp(array.type):
        ticks = np.asarray(pc.fill_null(array.cast(pa.int64()), 0))
        seconds = ticks // _UNITS[array.type.unit]
        return Moment(seconds // _DAY if dated else seconds, _DAY if dated else 1, null)
    if pa.types.is_date32(array.type) and dated:
        return Moment(np.asarray(pc.fill_null(array.cast(pa.int32()), 0)).astype(np.int64), _DAY, null)
    if pa.types.is_integer(array.type) and kind.name != "DateTime64":
        values = np.asarray(pc.fill_null(array.cast(pa.int64()), 0))
        return Moment(values, _DAY if dated else 1, null)
    return None


def calendar_value(name: str, moment: Moment, mode: int = 0) -> tuple[npt.NDArray[np.int64], str] | None:
    """The function's result and its kind: ``plain`` numbers, ``date`` in days, ``time`` in seconds since 1970.

    None if a result would leave the range of ClickHouse's Date (1970–2149) or DateTime (1970–2106): the server
    wraps or clamps it there. ``mode`` is toStartOfWeek's: 0 begins weeks on Sunday, 1 on Monday.
    """
    days = moment.days
    if name in _NUMBERS:
        return _number(name, days)
    if name in _TO_TIME:
        step = _DAY if name == "toStartOfDay" else 3_600
        if name == "toStartOfHour" and moment.unit == _DAY:
            return None
        return (moment.seconds // step * step, "time") if _within(days, 0, 49_709, moment) else None
    # Weeks that begin before 1970-01-01 are cut there by the server.
    if not _within(days, 7, 65_379, moment):
        return None
    if name == "toDate":
        return days, "date"
    if name == "toMonday" or (name == "toStartOfWeek" and mode == 1):
        return (days + 3) // 7 * 7 - 3, "date"
    if name == "toStartOfWeek":
        return ((days + 4) // 7 * 7 - 4, "date") if mode == 0 else None
    months = days.astype("M8[D]").astype("M8[M]")
    if name == "toStartOfYear":
        months = months.astype("M8[Y]").astype("M8[M]")
    elif name == "toStartOfQuarter":
        months = (months.astype(np.int64) // 3 * 3).astype("M8[M]")
    return months.astype("M8[D]").astype(np.int64), "date"


def _within(days: npt.NDArray[np.int64], low: int, high: int, moment: Moment) -> bool:
    real = days if moment.null is None else days[~moment.null]
    return not len(real) or (int(real.min()) >= low and int(real.max()) <= high)


def _number(name: str, days: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], str] | None:
    if len(days) and (int(days.min()) < -25_567 or int(days.max()) > 120_529):
        return None  # outside 1900–2299, the range of Date32 and DateTime64
    date = days.astype("M8[D]")
    months = date.astype("M8[M]").astype(np.int64)
    year, month = months // 12 + 1970, months % 12 + 1
    if name == "toYear":
        return year, "plain"
    if name == "toYYYYMM":
        return year * 100 + month, "plain"
    day = (date - date.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1
    return (year * 100 + month) * 100 + day, "plain"


Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]


_DENSE = 1 << 16


class _Unknown(Exception):
    """The expression, or one of its values, is left to the server."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One element of the partition key: a value per row, ``null`` where it is NULL."""

    values: pa.Array
    kind: str = "plain"
    """The form of its label: plain, date (days since 1970) or time (seconds since 1970)."""


def partition_groups(table: TargetTable, rows: pa.Table) -> list[tuple[str, npt.NDArray[np.int64]]] | None:
    """Label and row numbers (ascending) of every partition that ``rows`` touch, in the order of first rows.

    ``rows`` has columns named and typed as they are inserted. A table without PARTITION BY is the one group
    ``all``. None if the expression or a value of it is beyond the client.
    """
    if not table.partition_key or table.partition_key == "tuple()":
        return [("all", np.arange(rows.num_rows, dtype=np.int64))]
    if not rows.num_rows:
        return []
    try:
        tree = parse_expression(table.partition_key)
        elements = tree.arguments if isinstance(tree, Call) and tree.name == "tuple" else (tree,)
        parts = [_evaluate(element, table, rows) for element in elements]
    except (_Unknown, TableError):
        return None
    return _group(parts)


def _group(parts: list[_Part]) -> list[tuple[str, npt.NDArray[np.int64]]]:
    codes = np.zeros(len(parts[0].values), dtype=np.int64)
    size = 1
    for part in parts:
        encoded = pc.dictionary_encode(part.values, null_encoding="encode")
        size *= max(len(encoded.dictionary), 1)
        codes = codes * max(len(encoded.dictionary), 1) + np.asarray(encoded.indices)
        if size > _DENSE:
            distinct, codes = np.unique(codes, return_inverse=True)
            size = len(distinct)
    if (codes == codes[0]).all():
        return [(_label(parts, 0), np.arange(len(codes), dtype=np.int64))]
    # Sixteen bits are sorted by radix, in linear time.
    order = np.argsort(codes.astype(np.uint16) if size <= _DENSE else codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
    groups = np.split(order.astype(np.int64), starts[1:])
    groups.sort(key=lambda group: int(group[0]))
    return [(_label(parts, int(group[0])), group) for group in groups]


def _label(parts: list[_Part], row: int) -> str:
    texts = [_text(part, python_values(part.values.slice(row, 1))[0]) for part in parts]
    return texts[0] if len(texts) == 1 else f"({','.join(texts)})"


def _text(part: _Part, value: object) -> str:
    if value is None:
        return "NULL"
    if part.kind == "date" and isinstance(value, int):
        return str(np.datetime64(value, "D"))
    if part.kind == "time" and isinstance(value, int):
        return str(np.datetime64(value, "s")).replace("T", " ")
    if isinstance(value, bytes):
        try:
            return literal(value.decode())
        except UnicodeDecodeError:  # written so that no text has the same label
            return f"unhex('{value.hex()}')"
    return literal(value) if isinstance(value, str) else str(value)


def _evaluate(tree: Expression, table: TargetTable, rows: pa.Table) -> _Part:
    if isinstance(tree, ColumnRef):
        return _column(tree, table, rows)
    if isinstance(tree, Literal):
        raise _Unknown
    if tree.name in ("modulo", "intDiv") and len(tree.arguments) == 2:
        return _divided(tree, table, rows)
    name, arguments = _calendar_call(tree)
    if name in CALENDAR and arguments and isinstance(arguments[0], ColumnRef):
        return _calendar(name, arguments, table, rows)
    raise _Unknown


_TRUNC = {
    "year": "toStartOfYear",
    "quarter": "toStartOfQuarter",
    "month": "toStartOfMonth",
    "week": "toMonday",
    "day": "toStartOfDay",
    "hour": "toStartOfHour",
}


def _calendar_call(tree: Call) -> tuple[str, tuple[Expression, ...]]:
    """``dateTrunc('month', x)`` as the function it stands for."""
    if tree.name in ("dateTrunc", "date_trunc", "DATE_TRUNC") and isinstance(tree.arguments[0], Literal):
        unit = str(tree.arguments[0].value).lower()
        # Of a date, the units from a day down give other types: left to the server.
        return (_TRUNC.get(unit, "") if unit in ("year", "quarter", "month", "week") else ""), tree.arguments[1:]
    return tree.name, tree.arguments


def _stored(ref: ColumnRef, table: TargetTable, rows: pa.Table) -> tuple[pa.Array, ChType]:
    column = table.column(ref.name)
    if column is None or ref.name not in rows.column_names:
        raise _Unknown
    values = rows.column(ref.name)
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    tree = parse_type(column.type)
    if array.null_count and not tree.nullable:
        raise _Unknown  # the server puts the column's default there
    return array, tree.bare


def _column(ref: ColumnRef, table: TargetTable, rows: pa.Table) -> _Part:
    array, tree = _stored(ref, table, rows)
    if tree.name.startswith(("Float", "BFloat", "Enum", "Tuple", "Array", "Map", "JSON", "Variant", "Dynamic")):
        raise _Unknown
    if tree.name in ("Date", "Date32", "DateTime"):
        moment = _moment(array, tree)
        return _Part(_masked(moment.values, moment.null), "date" if tree.name != "DateTime" else "time")
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    return _Part(array)


def _moment(array: pa.Array, tree: ChType) -> Moment:
    moment = moment_of(array, tree)
    if moment is None:
        raise _Unknown
    return moment


def _calendar(name: str, arguments: tuple[Expression, ...], table: TargetTable, rows: pa.Table) -> _Part:
    assert isinstance(arguments[0], ColumnRef)
    array, tree = _stored(arguments[0], table, rows)
    options = list(arguments[1:])
    mode = 0
    if name == "toStartOfWeek" and options and isinstance(options[0], Literal) and isinstance(options[0].value, int):
        mode = options.pop(0).value  # type: ignore[assignment,union-attr]
    zone = tree.timezone
    if options and isinstance(options[0], Literal) and isinstance(options[0].value, str):
        zone = options.pop(0).value  # type: ignore[assignment,union-attr]
    if options or (tree.name in ("DateTime", "DateTime64") and zone not in ("UTC", "Etc/UTC", "GMT", "Etc/GMT")):
        raise _Unknown
    moment = _moment(array, tree)
    value = calendar_value(name, moment, mode)
    if value is None:
        raise _Unknown
    values, kind = value
    return _Part(_masked(values, moment.null), kind)


def _masked(values: npt.NDArray[np.int64], null: npt.NDArray[np.bool_] | None) -> pa.Array:
    return pa.array(values, mask=null) if null is not None else pa.array(values)


def _divided(tree: Call, table: TargetTable, rows: pa.Table) -> _Part:
    column, by = tree.arguments
    if not isinstance(column, ColumnRef) or not isinstance(by, Literal) or not isinstance(by.value, int):
        raise _Unknown
    array, kind = _stored(column, table, rows)
    if not pa.types.is_integer(array.type) or kind.name.lstrip("U") not in ("Int8", "Int16", "Int32", "Int64"):
        raise _Unknown
    divisor = by.value
    if not 0 < divisor < 1 << 63:
        raise _Unknown
    null = np.asarray(array.is_null()) if array.null_count else None
    wide = pa.uint64() if pa.types.is_unsigned_integer(array.type) else pa.int64()
    values: Numbers = np.asarray(pc.fill_null(array.cast(wide), 0))
    unsigned = values.dtype == np.uint64
    step = np.uint64(divisor) if unsigned else np.int64(divisor)
    remainder = np.fmod(values, step)
    if tree.name == "intDiv":
        # The quotient of a division that truncates; (values - remainder) divides without rest.
        result = (values - remainder) // step
    else:
        # In partition keys the server takes `moduloLegacy`, whose result is unsigned and as wide as the divisor:
        # -1 % 8 is 255 there, and shares its partition with nothing else only while the divisor is small.
        bits = next(b for b in (8, 16, 32, 64) if divisor < 1 << b)
        result = remainder if unsigned else remainder.astype(f"uint{bits}")
    return _Part(pa.array(result, mask=null) if null is not None else pa.array(result))
