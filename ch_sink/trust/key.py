"""A key that a user writes as JSON, as the table's key columns hold it."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.arrow_io import conform
from ch_sink.errors import ClickHouseError, StreamFailed
from ch_sink.table.model import TargetTable
from ch_sink.trust.subject import Subject
from ch_sink.types.arrow import arrow_type, carried
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import literal, quote

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d:\d\d(\.\d+)?)?")
_HINT = "Write the key as JSON, e.g. '{\"id\": 7}'."


class WantedKey:
    """One key, or some of its columns."""

    def __init__(self, table: TargetTable, sql: Mapping[str, str], values: Mapping[str, pa.Scalar]) -> None:
        """``sql``: column → expression of its value, NULL for none; ``values``: column → Arrow scalar."""
        self._table, self._sql, self._values = table, dict(sql), dict(values)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the key's columns."""
        return tuple(self._sql)

    @property
    def condition(self) -> str:
        """SQL that is true for the rows of the key."""
        return " AND ".join(
            f"isNull({quote(name)})" if sql == "NULL" else f"{quote(name)} = {sql}" for name, sql in self._sql.items()
        )

    def within(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """A mask of the rows that have the key. Raises StreamFailed if they lack one of its columns."""
        lacking = [name for name in self._values if name not in rows.column_names]
        if lacking and rows.num_rows:
            raise StreamFailed(
                f"the events have no key column {lacking[0]!r}", hint=f"The key is ({', '.join(rows.column_names)})."
            )
        found = np.ones(rows.num_rows, dtype=np.bool_)
        for name, value in self._values.items() if rows.num_rows else ():
            column = rows.column(name)
            kind = arrow_type(next(c.type for c in self._table.columns if c.name == name))
            held = conform(column, kind)
            same = pc.is_null(held) if not value.is_valid else pc.fill_null(pc.equal(held, value), False)
            found &= np.asarray(same)
        return found


def wanted_key(client: Client, table: TargetTable, key: Mapping[str, Any], whole: Sequence[str] = ()) -> WantedKey:
    """The key as the table's types hold it.

    Args:
        whole: columns that the key must consist of; empty: it may name any columns.

    Raises StreamFailed if a column is unknown or lacking, or if a value does not fit its column; ClickHouseError.
    """
    types = {column.name: column.type for column in table.columns}
    unknown = [name for name in key if name not in types]
    if unknown or not key:
        what = f"no key column {unknown[0]!r}" if unknown else "a key, and the given key names no column"
        raise StreamFailed(f"{table.qualified} has {what}", hint=_HINT)
    if whole and set(whole) != set(key):
        raise StreamFailed(
            f"the key of {table.qualified} is ({', '.join(whole)}), and the given key has ({', '.join(key)})",
            hint=_HINT,
        )
    sql, values = {}, {}
    for name, value in key.items():
        sql[name] = _expression(value, types[name], name)
        values[name] = _scalar(client, table, name, value, sql[name])
    return WantedKey(table, sql, values)


def condition_of(subject: Subject, key: Mapping[str, Any]) -> str:
    """The condition on the one row of a table that has this key. Raises StreamFailed, ClickHouseError."""
    if not subject.key:
        raise StreamFailed(
            f"{subject.table.qualified} has no key: its rows are counted, and one alone cannot be repaired",
            hint="Leave out --key.",
        )
    return wanted_key(subject.client, subject.table, key, subject.key).condition


def _expression(value: Any, kind: str, name: str) -> str:
    if (raw := _bytes(value)) is not None and parse_type(kind).bare.name in ("String", "FixedString"):
        return f"CAST(unhex('{raw.hex()}'), {literal(kind)})"
    if isinstance(value, dict | list):
        raise StreamFailed(f"the value of key column {name!r} is not a plain value", hint=_HINT)
    if value is None:
        if not parse_type(kind).nullable:
            raise StreamFailed(f"key column {name!r} is a {kind} and is never null", hint=_HINT)
        return "NULL"
    return f"CAST({literal(_text(value))}, {literal(kind)})"


def _bytes(value: Any) -> bytes | None:
    """The bytes of ``{"hex": "00ff"}``; None for another value."""
    if not isinstance(value, dict) or set(value) != {"hex"}:
        return None
    try:
        return bytes.fromhex(str(value["hex"]))
    except ValueError:
        return None


def _scalar(client: Client, table: TargetTable, name: str, value: Any, sql: str) -> pa.Scalar:
    """The value as ClickHouse reads it from its text."""
    kind = next(c.type for c in table.columns if c.name == name)
    wanted = arrow_type(kind)
    if value is None:
        return pa.scalar(None, wanted)
    try:
        found = client.arrow(
            f"SELECT {carried(sql, kind)} AS k, toString({sql}) AS shown", settings=EVERY_TYPE, doing="read the key"
        )
    except ClickHouseError as error:
        if error.temporary:
            raise
        raise _misfit(name, kind, value) from None
    shown = bytes(found.column("shown")[0].as_py()).decode("utf-8", "replace")
    if not _is_shown(_text(value), shown, parse_type(kind).bare.name):
        raise _misfit(name, kind, value)
    scalar = conform(found.column("k"), wanted)[0]
    if scalar.is_valid and scalar.as_py() != scalar.as_py():
        raise StreamFailed(
            f"key column {name!r}: NaN equals nothing, so no row is found by it",
            hint="Compare or repair the rows by a condition, --where 'isNaN(…)'.",
        )
    return scalar


def _is_shown(text: str, shown: str, kind: str) -> bool:
    """Whether a value is the one that was written: ClickHouse cuts digits off, wraps numbers, and moves days.

    A time is checked only if it is written as ClickHouse shows it.
    """
    if kind.removeprefix("U").startswith("Int"):
        return shown == text.removeprefix("+")
    if kind == "Decimal":
        return Decimal(shown) == Decimal(text)
    if kind.startswith("Date") and _TIME.fullmatch(text):
        day, clock = text[:10], text[11:] or ("00:00:00" if "Time" in kind else "")
        return _without_zeros(shown) == _without_zeros(f"{day} {clock}".rstrip())
    return True


def _without_zeros(time: str) -> str:
    return time.rstrip("0").rstrip(".") if "." in time else time


def _misfit(name: str, kind: str, value: Any) -> StreamFailed:
    return StreamFailed(f"key column {name!r} is a {kind}, which {_text(value)!r} does not fit", hint=_HINT)


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
