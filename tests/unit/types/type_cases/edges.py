"""Columns other than those of ``matrix.py``, at their bounds or with fewer digits than the values have."""

from tests.unit.types.type_cases.case import DATA, TIME, Case, array, b64, field, named

__all__ = ["EDGES"]

_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_INTS = array(field("int32"))
_TEXT_TO_TEXT = field("map", keys=field("string", optional=False), values=field("string"))
_ZONED = field("string", TIME + "ZonedTimestamp")
_NEAR_1970 = ((-1, "1969-12-31 23:59:59.9999"), (-100001, "1969-12-31 23:59:59.8999"), (1, "1970-01-01 00:00:00.0000"))

EDGES: list[Case] = [
    Case("integer", field("int64"), "Int256", ((-5, "-5"), (7, "7"))),
    Case(
        "number",
        named(DATA + "VariableScaleDecimal", {"scale": field("int32"), "value": field("bytes")}),
        "String",
        (({"scale": -2, "value": b64(b"\x05")}, "500"),),
    ),
    Case("words", field("string"), "Decimal(9, 3)", (("-1.5", "-1.5"), ("1e3", "1000"))),
    Case("words", field("string"), "IPv6", (("::1", "::1"),)),
    Case("words", field("string"), "LowCardinality(String)", (("a", "a"), ("b", "b"), ("a", "a"))),
    Case("enum", field("string", DATA + "Enum", optional=False), "Enum8('a' = 1, 'b' = -2)", (("b", "b"), ("a", "a"))),
    Case("set", field("string", DATA + "EnumSet"), "Array(LowCardinality(String))", (("x,z", "['x','z']"), ("", "[]"))),
    Case("array", _INTS, "Array(Nullable(Int32))", (([1, None], "[1,NULL]"), (None, "[]"))),
    Case("array", array(field("string", DATA + "Uuid")), "Array(UUID)", (([_UUID], f"['{_UUID}']"),)),
    Case("map", _TEXT_TO_TEXT, "Map(String, Nullable(String))", (({"a": "1"}, "{'a':'1'}"), (None, "{}"))),
    Case("day", field("int32", TIME + "Date"), "Date", ((0, "1970-01-01"), (65535, "2149-06-06"))),
    Case("day", field("int32", TIME + "Date"), "DateTime64(3, 'UTC')", ((-1, "1969-12-31 00:00:00.000"),)),
    Case("micros", field("int64", TIME + "MicroTimestamp"), "Date32", ((-1, "1969-12-31"),)),
    Case("micros", field("int64", TIME + "MicroTimestamp"), "DateTime64(4, 'UTC')", _NEAR_1970),
    Case(
        "nanos",
        field("int64", TIME + "NanoTimestamp"),
        "DateTime64(7, 'UTC')",
        ((-1, "1969-12-31 23:59:59.9999999"), (-(2**63) + 8, "1677-09-21 00:12:43.1452242")),
    ),
    Case(
        "moment",
        _ZONED,
        "DateTime64(5, 'UTC')",
        (
            ("1969-12-31T23:59:59.123456789Z", "1969-12-31 23:59:59.12345"),
            ("2024-01-01T00:00:00.987654321Z", "2024-01-01 00:00:00.98765"),
        ),
    ),
    Case(
        "time",
        field("int64", TIME + "MicroTime"),
        "String",
        ((-3020399000000, "-838:59:59"), (86399999999, "23:59:59.999999")),
    ),
]
