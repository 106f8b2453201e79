"""MySQL and MariaDB: every type of the connector's tables, in every mode."""

from tests.unit.types.type_cases.case import (
    CONNECT,
    DATA,
    TIME,
    Case,
    array,
    b64,
    connect_decimal,
    dates,
    datetimes,
    decimals,
    exact,
    field,
    named,
    octets,
    spatial,
    texts,
    times,
    zoned,
)

_MODES = ("adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
_WKB_POINT = bytes.fromhex("0101000000000000000000f83f00000000000000c0")
_WKB_LINE = bytes.fromhex("010200000001000000") + b"\x00" * 16
_POINT = {"x": field("double", optional=False), "y": field("double", optional=False), "wkb": field("bytes")} | {
    "srid": field("int32")
}


def _bits(length: int, *numbers: int) -> Case:
    """BIT(n): little-endian bytes."""
    size = (length + 7) // 8
    small = length <= 64
    return Case(
        f"BIT({length})",
        field("bytes", DATA + "Bits", length=length),
        "Nullable(UInt64)" if small else "Nullable(String)",
        tuple(
            (b64(n.to_bytes(size, "little")), str(n) if small else format(n, "b").rjust(length, "0")) for n in numbers
        ),
        untold="" if small else "base64 into String stays base64",
    )


CASES: list[Case] = [
    # Basic types
    exact("BOOLEAN", field("boolean"), "Nullable(Bool)", True, False),
    exact("TINYINT(1)", field("int16"), "Nullable(Int16)", 0, 1, -128, 127),
    exact("BIT(1)", field("boolean"), "Nullable(Bool)", True, False),
    _bits(2, 0, 1, 2, 3),
    _bits(8, 0, 255),
    _bits(12, 0, 0b101010101010, 4095),
    _bits(63, 2**63 - 1, 1),
    _bits(64, 0, 1, 2**63, 2**64 - 1),
    exact("TINYINT UNSIGNED", field("int16"), "Nullable(Int16)", 0, 255),
    exact("SMALLINT", field("int16"), "Nullable(Int16)", -32768, 32767),
    exact("SMALLINT UNSIGNED", field("int32"), "Nullable(Int32)", 0, 65535),
    exact("MEDIUMINT", field("int32"), "Nullable(Int32)", -8388608, 8388607),
    exact("MEDIUMINT UNSIGNED", field("int32"), "Nullable(Int32)", 0, 16777215),
    exact("INT", field("int32"), "Nullable(Int32)", -(2**31), 2**31 - 1),
    exact("INT UNSIGNED", field("int64"), "Nullable(Int64)", 0, 2**32 - 1),
    exact("BIGINT", field("int64"), "Nullable(Int64)", -(2**63), 2**63 - 1),
    Case(
        "BIGINT UNSIGNED, precise",
        field("bytes", CONNECT + "Decimal", scale=0),
        "Nullable(Decimal(38, 0))",
        ((connect_decimal("18446744073709551615", 0), "18446744073709551615"), ("AA==", "0")),
    ),
    exact("SERIAL, long", field("int64", optional=False), "Int64", 1, 2**63 - 1),
    Case(
        "FLOAT(7)", field("float"), "Nullable(Float32)", ((1.17549435e-38, "1.1754944e-38"), (16777217.0, "16777216"))
    ),
    exact("FLOAT(30)", field("double"), "Nullable(Float64)", 1.5, -0.1),
    Case("DOUBLE", field("double"), "Nullable(Float64)", ((5e-324, "5e-324"), (0.1, "0.1"), (2**53, str(2**53)))),
    # Text
    texts("CHAR(3)", field("string"), "Nullable(String)", "", "abc", "é漢"),
    texts("VARCHAR(255)", field("string")),
    texts("VARCHAR(255) NOT NULL", field("string", optional=False, default=""), "String", "", "x"),
    texts("TINYTEXT", field("string")),
    texts("TEXT", field("string")),
    texts("MEDIUMTEXT", field("string")),
    texts("LONGTEXT", field("string"), "Nullable(String)", "x" * 1_000_000),
    texts("JSON", field("string", DATA + "Json"), "Nullable(String)", '{"a":  1.0, "b":[]}', "null", '"text"', "1e400"),
    texts("JSON of MariaDB", field("string"), "Nullable(String)", '{"a":1}'),
    texts(
        "ENUM", field("string", DATA + "Enum", allowed="a,b c,''"), "LowCardinality(Nullable(String))", "a", "b c", ""
    ),
    texts("ENUM NOT NULL", field("string", DATA + "Enum", optional=False, allowed="a"), "LowCardinality(String)", "a"),
    texts("SET", field("string", DATA + "EnumSet", allowed="a,b"), "LowCardinality(Nullable(String))", "", "a", "a,b"),
    # Binary
    *octets("BINARY(4)", b"\x00\x00\x00\x00", b"ab\x00\x00"),
    *octets("VARBINARY(255)"),
    *octets("TINYBLOB"),
    *octets("BLOB"),
    *octets("MEDIUMBLOB"),
    *octets("LONGBLOB", b"\x00\xff" * 100_000),
    # Temporal
    exact("YEAR", field("int32", TIME + "Year"), "Nullable(UInt16)", 0, 1901, 2155),
    *dates("DATE", "1000-01-01", "1969-12-31", "2024-02-29", "9999-12-31", modes=_MODES),
    *times("TIME", 0, "-838:59:59", "00:00:00", "838:59:59", "24:00:00", modes=_MODES),
    *times("TIME(3)", 3, "-838:59:59", "-00:00:00.001", "12:34:56.789", "838:59:58.999", modes=_MODES),
    *times("TIME(6)", 6, "-838:59:58.999999", "-00:00:00.000001", "12:34:56.789012", "838:59:59", modes=_MODES),
    *times("TIME(6), adaptive", 6, "12:34:56.789012", modes=("adaptive",)),
    *datetimes("DATETIME", 0, "1000-01-01 00:00:00", "1969-12-31 23:59:59", "9999-12-31 23:59:59", modes=_MODES),
    *datetimes("DATETIME(3)", 3, "1000-01-01 00:00:00.001", "9999-12-31 23:59:59.999", modes=_MODES),
    *datetimes("DATETIME(6)", 6, "1000-01-01 00:00:00.000001", "2018-06-20 06:37:03.123456", modes=_MODES),
    *datetimes("DATETIME(6) at its end", 6, "9999-12-31 23:59:59.999999", modes=("adaptive_time_microseconds",)),
    zoned("TIMESTAMP", "1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    zoned("TIMESTAMP(6)", "2018-06-20 13:37:03.1", "2018-06-20 13:37:03.000001"),
    Case(
        "zero date NOT NULL arrives as the epoch",
        field("int32", TIME + "Date", optional=False),
        "Date32",
        ((0, "1970-01-01"),),
    ),
    # Decimal
    *decimals("DECIMAL(65,30)", 65, 30, "9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 30),
    *decimals("DECIMAL(10,0)", 10, 0, "9999999999", "-9999999999"),
    *decimals("DECIMAL(1,1)", 1, 1, "0.9", "-0.9", "0.0"),
    *decimals("NUMERIC(9,2)", 9, 2, "1234567.89", "-0.01"),
    *decimals("DECIMAL(10,2) ZEROFILL", 10, 2, "00000001.50"[7:], "99999999.99"),
    # Spatial
    Case(
        "POINT",
        named(DATA + "geometry.Point", _POINT),
        "Nullable(Point)",
        (
            ({"x": 1.5, "y": -2.0, "wkb": b64(_WKB_POINT), "srid": None}, "(1.5,-2)"),
            ({"x": 0, "y": 1e-300, "wkb": None, "srid": 4326}, "(0,1e-300)"),
        ),
    ),
    *(
        spatial(what, _WKB_LINE, None, 4326)
        for what in (
            "GEOMETRY",
            "LINESTRING",
            "POLYGON",
            "MULTIPOINT",
            "MULTILINESTRING",
            "MULTIPOLYGON",
            "GEOMETRYCOLLECTION",
        )
    ),
    Case(
        "VECTOR(2)",
        array(field("float", optional=False), DATA + "FloatVector"),
        "Nullable(Tuple(items Array(Float32)))",
        (([1.5, -2], "([1.5,-2])"),),
    ),
    texts("UUID of MariaDB", field("string"), "Nullable(String)", "00112233-4455-6677-8899-aabbccddeeff"),
    texts("INET6 of MariaDB", field("string"), "Nullable(String)", "::1", "2001:db8::ff00:42:8329"),
]
