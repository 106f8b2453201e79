"""SQL Server: the tables of the connector's data type mappings, every row in every mode."""

from tests.unit.types.type_cases.case import (
    CONNECT,
    DATA,
    TIME,
    Case,
    array,
    connect_decimal,
    dates,
    datetimes,
    decimals,
    exact,
    field,
    octets,
    spatial,
    texts,
    times,
)

_MODES = ("adaptive", "connect", "isostring", "microseconds", "nanoseconds")
_WKB = bytes.fromhex("0101000000000000000000f03f00000000000000c0")

CASES: list[Case] = [
    # Basic types
    exact("BIT", field("boolean"), "Nullable(Bool)", True, False),
    exact("TINYINT", field("int16"), "Nullable(Int16)", 0, 255),
    exact("SMALLINT", field("int16"), "Nullable(Int16)", -32768, 32767),
    exact("INT", field("int32"), "Nullable(Int32)", -(2**31), 0, 2**31 - 1),
    exact("INT NOT NULL", field("int32", optional=False), "Int32", -(2**31), 2**31 - 1),
    exact("INT NOT NULL DEFAULT", field("int32", optional=False, default=7), "Int32", 0, 7),
    exact("BIGINT", field("int64"), "Nullable(Int64)", -(2**63), 2**63 - 1),
    Case("REAL", field("float"), "Nullable(Float32)", ((1.1, "1.1"), (-3.4028235e38, "-3.4028235e38"), (0, "0"))),
    Case(
        "FLOAT(53)",
        field("double"),
        "Nullable(Float64)",
        ((1.7976931348623157e308, "1.7976931348623157e308"), (-2.2e-308, "-2.2e-308"), (5, "5"), (-0.0, "-0")),
    ),
    texts("CHAR(10)", field("string"), "Nullable(String)", "abc       ", " " * 10),
    texts("VARCHAR(max)", field("string")),
    texts("TEXT", field("string")),
    texts("NCHAR(3)", field("string"), "Nullable(String)", "漢字 "),
    texts("NVARCHAR(20) NOT NULL", field("string", optional=False), "String", "", "Größe", "🦀" * 20),
    texts("NTEXT", field("string")),
    texts("XML", field("string", DATA + "Xml"), "Nullable(String)", '<a b="1">é<c/></a>', ""),
    texts("UNIQUEIDENTIFIER", field("string"), "Nullable(String)", "6F9619FF-8B86-D011-B42D-00C04FC964FF"),
    texts("SQL_VARIANT as text", field("string"), "Nullable(String)", "12.5", "abc"),
    texts("JSON", field("string", DATA + "Json"), "Nullable(String)", '{"a": 1,  "a":2.50}', "[]", "null"),
    *octets("BINARY(4)", b"\x00\x00\x00\x00", b"\xff\x00\x01\x02"),
    *octets("VARBINARY(max)"),
    *octets("IMAGE"),
    *octets("ROWVERSION", bytes.fromhex("00000000000007d1"), b"\xff" * 8),
    *octets("HIERARCHYID", b"", b"\x5a\xc0"),
    spatial("GEOMETRY", _WKB, 4326, None),
    spatial("GEOGRAPHY", _WKB, 4326, kind="Geography"),
    Case(
        "VECTOR(3)",
        array(field("float", optional=False), DATA + "FloatVector"),
        "Nullable(Tuple(items Array(Float32)))",
        (([1.5, -2, 0.25], "([1.5,-2,0.25])"), ([], "([])")),
    ),
    # Times with a zone keep their instant.
    Case(
        "DATETIMEOFFSET(3)",
        field("string", TIME + "ZonedTimestamp"),
        "Nullable(DateTime64(6, 'UTC'))",
        (
            ("2018-07-18T13:14:15.123+11:00", "2018-07-18 02:14:15.123000"),
            ("2018-07-18T13:14:15Z", "2018-07-18 13:14:15.000000"),
            ("2018-07-18T00:00:00-14:00", "2018-07-18 14:00:00.000000"),
            ("0001-01-01T00:00:00Z", "0001-01-01 00:00:00.000000"),
            ("9999-12-31T23:59:59.999Z", "9999-12-31 23:59:59.999000"),
        ),
    ),
    Case(
        "DATETIMEOFFSET(7)",
        field("string", TIME + "ZonedTimestamp"),
        "Nullable(DateTime64(7, 'UTC'))",
        (
            ("2018-07-18T13:14:15.1234567+05:30", "2018-07-18 07:44:15.1234567"),
            ("1700-01-01T00:00:00.0000001Z", "1700-01-01 00:00:00.0000001"),
        ),
    ),
    Case(
        "DATETIMEOFFSET(7) at its bounds",
        field("string", TIME + "ZonedTimestamp"),
        "Nullable(String)",
        (
            ("0001-01-01T00:00:00.0000001Z", "0001-01-01 00:00:00.0000001+00"),
            ("9999-12-31T23:59:59.9999999Z", "9999-12-31 23:59:59.9999999+00"),
        ),
        untold="the text is kept as sent",
    ),
    # Temporal values
    *dates("DATE", "0001-01-01", "1582-10-15", "1969-12-31", "2024-02-29", "9999-12-31", modes=_MODES),
    *times("TIME(0)", 0, "00:00:00", "23:59:59", modes=_MODES),
    *times("TIME(3)", 3, "00:00:00", "12:34:56.789", "23:59:59.999", modes=_MODES),
    *times("TIME(6)", 6, "00:00:00", "12:34:56.789012", "23:59:59.999999", modes=_MODES),
    *times("TIME(7)", 7, "00:00:00.0000001", "12:34:56.7890123", "23:59:59.9999999", modes=_MODES),
    exact("TIME, connect, as the documents have it", field("int64", CONNECT + "Time"), "Nullable(Int64)", 0, 86399999),
    *datetimes(
        "DATETIME", 3, "1753-01-01 00:00:00", "2018-06-20 15:13:16.997", "9999-12-31 23:59:59.997", modes=_MODES
    ),
    *datetimes("SMALLDATETIME", 0, "1900-01-01 00:00:00", "2079-06-06 23:59:00", modes=_MODES),
    *datetimes("DATETIME2(0)", 0, "0001-01-01 00:00:00", "1969-12-31 23:59:59", "9999-12-31 23:59:59", modes=_MODES),
    *datetimes("DATETIME2(3)", 3, "0001-01-01 00:00:00.001", "9999-12-31 23:59:59.999", modes=_MODES),
    *datetimes("DATETIME2(6)", 6, "2018-06-20 15:13:16.945104", "9999-12-31 23:59:59.999999", modes=_MODES),
    *datetimes("DATETIME2(7)", 7, "2018-06-20 15:13:16.9451042", "1969-12-31 23:59:59.9999999", modes=_MODES),
    *datetimes(
        "DATETIME2(7) at its bounds",
        7,
        "0001-01-01 00:00:00.0000001",
        "9999-12-31 23:59:59.9999999",
        modes=("connect", "microseconds"),
    ),
    # Decimal values
    *decimals("NUMERIC(38,0)", 38, 0, "9" * 38, "-" + "9" * 38, "0"),
    *decimals("NUMERIC(38,38)", 38, 38, "0." + "9" * 38, "-0." + "0" * 37 + "1"),
    *decimals("DECIMAL(18,4)", 18, 4, "99999999999999.9999", "-0.0001", "12.3400", "0.0000"),
    *decimals("DECIMAL(5,2)", 5, 2, "999.99", "-999.99", "100.00"),
    *decimals("MONEY", 19, 4, "922337203685477.5807", "-922337203685477.5808", "0.0001"),
    *decimals("SMALLMONEY", 10, 4, "214748.3647", "-214748.3648"),
    Case(
        "MONEY without a precision",
        field("bytes", CONNECT + "Decimal", scale=4),
        "Nullable(Decimal(38, 4))",
        ((connect_decimal("-922337203685477.5808", 4), "-922337203685477.5808"),),
    ),
]
