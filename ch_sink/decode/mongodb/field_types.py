"""Derives the column types of a collection's fields from sampled values."""

from collections.abc import Iterable
from typing import Any

from ch_sink.decode.mongodb.special import Binary, Date, Decimal, Int64, NonFinite
from ch_sink.types.connect import SourceType

__all__ = ["field_type", "key_type"]

_TEXT = SourceType("string")
_JSON = SourceType("string", "io.debezium.data.Json")
_TYPES = {
    bool: SourceType("boolean"),
    int: SourceType("int64"),
    float: SourceType("float64"),
    str: _TEXT,
    Int64: SourceType("int64"),
    NonFinite: SourceType("float64"),
    Date: SourceType("int64", "io.debezium.time.Timestamp"),
    dict: _JSON,
    list: _JSON,
}


def field_type(values: Iterable[Any]) -> SourceType | None:
    """The type that holds all these values of a field; None if all of them are null.

    Integers mixed with doubles become double, a Decimal128 becomes text, and any other mixture becomes text.
    """
    found: SourceType | None = None
    for value in values:
        if value is not None:
            one = _one(value)
            found = one if found is None or found == one else _joined(found, one)
    return found


def key_type(values: Iterable[Any]) -> SourceType:
    """The type of the key: integer or UUID if all sampled keys are, else text."""
    seen = list(values)
    if seen and all(isinstance(v, (int, Int64)) and not isinstance(v, bool) for v in seen):
        return SourceType("int64", optional=False)
    if seen and all(isinstance(v, Binary) and v.subtype == 4 and v.uuid for v in seen):
        return SourceType("string", "io.debezium.data.Uuid", optional=False)
    return SourceType("string", optional=False)


def _one(value: Any) -> SourceType:
    if isinstance(value, Binary) and value.subtype == 4 and value.uuid:
        return SourceType("string", "io.debezium.data.Uuid")
    if isinstance(value, Decimal):
        return _TEXT
    return _TYPES.get(type(value), _TEXT)


def _joined(one: SourceType, other: SourceType) -> SourceType:
    if {one.kind, other.kind} == {"int64", "float64"} and one.name is None and other.name is None:
        return SourceType("float64")
    return _TEXT
