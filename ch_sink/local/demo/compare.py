"""Compares a table's rows, as text, with its source's."""

import re
from decimal import Decimal, InvalidOperation

from ch_sink.clickhouse import Client
from ch_sink.local.demo.streams import Truth, TruthColumn
from ch_sink.types.sql import quote

__all__ = ["as_source", "stored_count", "stored_rows", "unequal"]

Row = tuple[str | None, ...]

_BINARY = re.compile(r"bytea|binary|blob")
_NUMBER = re.compile(r"int|numeric|decimal|float|double|real|serial")
_TIME = re.compile(r"timestamp|datetime|date|time")


def stored_count(client: Client, database: str, table: str) -> int:
    """Rows of the table itself, including superseded and deleted ones that no merge has removed yet."""
    found = client.rows(f"SELECT count() AS n FROM {quote(database)}.{quote(table)}", doing=f"count {database}.{table}")
    return int(found[0]["n"])


def stored_rows(client: Client, database: str, table: str, truth: Truth) -> dict[Row, Row]:
    """Rows of the current-state view as text, by key."""
    wanted = ", ".join(
        f"{'hex' if _BINARY.search(c.type) else 'toString'}({quote(c.name)}) AS {quote(c.name)}" for c in truth.columns
    )
    found = client.rows(
        f"SELECT {wanted} FROM {quote(database)}.{quote(table + '_current')}", doing=f"read {database}.{table}_current"
    )
    rows = [tuple(row[c.name] for c in truth.columns) for row in found]
    keys = [c for c in truth.columns if c.key]

    def plain(key: Row) -> tuple[object, ...]:
        return tuple(_plain(c, v) for c, v in zip(keys, key, strict=True))

    # Keys are written as in the source if the values are equal.
    source = {plain(key): key for key in truth.by_key()}
    return {source.get(plain(truth.key_of(row)), truth.key_of(row)): row for row in rows}


def as_source(truth: Truth, here: Row, there: Row) -> Row:
    """The stored row's values, written as in the source if they are equal."""
    both = zip(truth.columns, here, there, strict=True)
    return tuple(a if _plain(c, a) == _plain(c, b) else b for c, a, b in both)


def unequal(truth: Truth, stored: dict[Row, Row]) -> list[Row]:
    """Keys of the rows that differ, are missing, or are no longer in the source."""
    source = truth.by_key()
    wrong = []
    for key in {**source, **stored}:
        here, there = source.get(key), stored.get(key)
        if (
            here is None
            or there is None
            or any(_plain(c, a) != _plain(c, b) for c, a, b in zip(truth.columns, here, there, strict=True))
        ):
            wrong.append(key)
    return wrong


def _plain(column: TruthColumn, value: str | None) -> object:
    """A value without differences of notation: trailing zeros, letter case of hex, the UTC suffix."""
    if value is None:
        return None
    if _BINARY.search(column.type):
        return value.upper().removeprefix("\\X")
    if _TIME.search(column.type):
        text = re.sub(r"(\+00(:00)?|Z)$", "", value.replace("T", " "))
        return re.sub(r"\.?0+$", "", text) if "." in text else text
    if _NUMBER.search(column.type):
        try:
            return Decimal(value)
        except InvalidOperation:
            return value
    return value
