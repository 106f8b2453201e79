"""Kinds of rows: their columns in ClickHouse, their fields as Connect declares them, and values drawn for a key."""

import base64
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ORDERS", "PADDED", "WIDE", "Field", "RowKind"]

Row = dict[str, Any]
_NOTE = (
    "a note of ordinary length about this order, as people write them into such fields: leave it with the neighbour "
    "if nobody opens, and do not ring twice, the dog barks; turn"
)
_MICROS = "io.debezium.time.MicroTimestamp"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True, slots=True)
class Field:
    """A column."""

    name: str
    clickhouse: str
    connect: str
    logical: str = ""
    scale: int | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class RowKind:
    """A table's shape, and its row for a key after so many changes."""

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    make: Callable[[int, int, random.Random], Row]
    """Key, number of the change, random numbers → a row, binary values as base64 text."""

    @property
    def columns(self) -> str:
        """The columns for CREATE TABLE."""
        return ", ".join(f"`{f.name}` {f.clickhouse}" for f in self.fields)

    @property
    def by_name(self) -> Mapping[str, Field]:
        return {f.name: f for f in self.fields}


def _cents(rng: random.Random) -> str:
    return base64.b64encode(rng.randrange(-(10**9), 10**9).to_bytes(5, "big", signed=True)).decode()


def _order(key: int, turn: int, rng: random.Random) -> Row:
    return {
        "id": key,
        "customer": rng.randrange(10**6),
        "status": ("new", "paid", "packed", "sent", "returned")[turn % 5],
        "amount": _cents(rng),
        "note": f"{_NOTE} {turn}",
        "sku": f"SKU-{key % 9973:08d}",
        "quantity": turn,
        "created": 1_700_000_000_000_000 + key,
    }


ORDERS = RowKind(
    (
        Field("id", "Int64", "int64"),
        Field("customer", "Int32", "int32"),
        Field("status", "LowCardinality(String)", "string"),
        Field("amount", "Decimal(12, 2)", "bytes", _DECIMAL, 2),
        Field("note", "Nullable(String)", "string", optional=True),
        Field("sku", "String", "string"),
        Field("quantity", "Int32", "int32"),
        Field("created", "DateTime64(6, 'UTC')", "int64", _MICROS),
    ),
    ("id",),
    _order,
)
"""Orders: images of about 270 bytes, events of about 770."""


def _padded(key: int, turn: int, rng: random.Random) -> Row:
    digits = f"{rng.getrandbits(180):055d}"
    return {"w": key % 16, "id": key, "k": turn, "c": f"{digits}-{digits}", "pad": digits}


PADDED = RowKind(
    (
        Field("w", "Int32", "int32"),
        Field("id", "Int32", "int32"),
        Field("k", "Int32", "int32"),
        Field("c", "String", "string"),
        Field("pad", "String", "string"),
    ),
    ("w", "id"),
    _padded,
)
"""As sysbench makes them: a composite key and two texts, images of about 200 bytes."""

_WIDE: tuple[tuple[str, str, str, int | None, Callable[[random.Random], Any]], ...] = (
    ("Int16", "int16", "", None, lambda r: r.randrange(-(2**15), 2**15)),
    ("Int32", "int32", "", None, lambda r: r.randrange(-(2**31), 2**31)),
    ("Int64", "int64", "", None, lambda r: r.randrange(-(2**63), 2**63)),
    ("Float64", "double", "", None, lambda r: r.random() * 1e6),
    ("Bool", "boolean", "", None, lambda r: r.random() < 0.5),
    ("String", "string", "", None, lambda r: f"text {r.getrandbits(40)}"),
    ("Decimal(12, 2)", "bytes", _DECIMAL, 2, _cents),
    ("Date32", "int32", "io.debezium.time.Date", None, lambda r: r.randrange(0, 20_000)),
    ("DateTime64(6, 'UTC')", "int64", _MICROS, None, lambda r: 1_700_000_000_000_000 + r.randrange(10**12)),
    ("UUID", "string", "io.debezium.data.Uuid", None, lambda r: _uuid(r)),
)


def _uuid(rng: random.Random) -> str:
    text = f"{rng.getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _wide(key: int, turn: int, rng: random.Random) -> Row:
    row: Row = {"id": key}
    for number in range(1, 60):
        row[f"c{number}"] = None if rng.random() < 0.05 else _WIDE[number % 10][4](rng)
    return row


WIDE = RowKind(
    (
        Field("id", "Int64", "int64"),
        *(
            Field(f"c{n}", f"Nullable({kind[0]})", kind[1], kind[2], kind[3], optional=True)
            for n in range(1, 60)
            for kind in (_WIDE[n % 10],)
        ),
    ),
    ("id",),
    _wide,
)
"""Sixty columns of ten types, one value in twenty null."""
