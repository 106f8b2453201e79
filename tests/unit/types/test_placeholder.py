"""The unavailable-value placeholder in every form."""

import hashlib
import uuid
from typing import Any

import pytest

from ch_sink.types import converter
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType
from tests.unit.types.columns import INT, TEXT, P, make


@pytest.mark.parametrize(
    ("source", "column_type", "literal"),
    [
        (TEXT, "String", P),
        (TEXT, "String", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        (TEXT, "String", P.encode().hex()),
        (TEXT, "String", f'{{"{P}":"{P}"}}'),
        (SourceType("bytes"), "String", P.encode()),
        (SourceType("array", items=TEXT), "Array(String)", [P]),
        (SourceType("array", items=TEXT), "Nullable(Tuple(items Array(Nullable(String))))", [P]),
        (SourceType("array", items=SourceType("bytes")), "Array(String)", [P.encode()]),
        (SourceType("array", items=INT), "Array(Int64)", list(P.encode())),
        (SourceType("array", items=SourceType("int32", "io.debezium.time.Date")), "Array(Date32)", list(P.encode())),
        (SourceType("map", keys=TEXT, items=TEXT), "Map(String, String)", {P: P}),
        (
            SourceType("array", items=SourceType("string", "io.debezium.data.Uuid")),
            "Array(UUID)",
            # UUID.nameUUIDFromBytes: version 3 without a namespace
            [str(uuid.UUID(bytes=hashlib.md5(P.encode()).digest(), version=3))],
        ),
        (None, "String", P),
        (None, "Array(Int64)", list(P.encode())),
        (TEXT, "JSON", P),
        (TEXT, "Decimal(20, 4)", P),
        (TEXT, "UUID", P),
        (TEXT, "FixedString(8)", P),
        (TEXT, "Enum8('a' = 1)", P),
        (TEXT, "IPv6", P),
        (TEXT, "Int64", P),
        (SourceType("bytes"), "FixedString(8)", P.encode()),
        (SourceType("string", "io.debezium.data.Json"), "Map(String, String)", P),
        (None, "FixedString(8)", P),
    ],
)
def test_placeholder_is_null_and_marked(source: SourceType | None, column_type: str, literal: Any) -> None:
    converted = make(source, column_type).convert([None, literal])
    assert converted.unavailable.tolist() == [False, True]
    assert converted.array[1].as_py() is None


def test_placeholder_is_a_value_where_the_source_sends_none() -> None:
    made = converter(TEXT, Column("x", "String"), encoding="json", policy=ValuePolicy(), omits=False)
    assert made.convert([P]).array.to_pylist() == [P.encode()]


def test_a_placeholder_in_hex_is_known() -> None:
    source = SourceType("string", parameters=(("__debezium.source.column.type", "BYTEA"),))
    made = converter(source, Column("x", "String"), encoding="json", policy=ValuePolicy(binary_handling="hex"))
    found = made.convert([P.encode().hex(), "00"])
    assert found.unavailable.tolist() == [True, False]
