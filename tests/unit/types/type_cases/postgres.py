"""PostgreSQL and its extensions: every type of the connector's tables, in every mode."""

import math

from tests.unit.types.type_cases.case import (
    CONNECT,
    DATA,
    TIME,
    Case,
    Raw,
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

_MODES = ("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
_VARIABLE = named(DATA + "VariableScaleDecimal", {"scale": field("int32"), "value": field("bytes")})
_POINT = named(
    DATA + "geometry.Point",
    {"x": field("double"), "y": field("double"), "wkb": field("bytes"), "srid": field("int32")},
)
_EWKB = bytes.fromhex("0101000020e6100000000000000000f03f00000000000000c0")
_BASE64 = "base64 into String stays base64"


def _variable(text: str) -> dict[str, object]:
    """A number without declared precision: scale and unscaled value."""
    _, _, fraction = text.partition(".")
    return {"scale": len(fraction), "value": connect_decimal(text, len(fraction))}


def _bits(what: str, length: int, *digits: str) -> Case:
    """Bit strings: little-endian, zero bytes at the end are left out."""
    small = length <= 64
    return Case(
        what,
        field("bytes", DATA + "Bits", length=length),
        "Nullable(UInt64)" if small else "Nullable(String)",
        tuple(
            (
                b64(int(d, 2).to_bytes(length // 8 + 1, "little").rstrip(b"\x00")),
                str(int(d, 2)) if small else d.rjust(length, "0"),
            )
            for d in digits
        ),
        untold="" if small else _BASE64,
    )


def _list(what: str, items: dict[str, object], member: str, *values: tuple[object, str], untold: str = "") -> Case:
    """A one-dimensional array; ``member`` is the type inside it."""
    column = f"Nullable(Tuple(items Array({member})))"
    return Case(what, array(items), column, tuple((v, f"({shown})") for v, shown in values), untold)


CASES: list[Case] = [
    # Basic types
    exact("BOOLEAN", field("boolean"), "Nullable(Bool)", True, False),
    exact("BIT(1)", field("boolean"), "Nullable(Bool)", True, False),
    _bits("BIT(8)", 8, "00000000", "10000001"),
    _bits("BIT(64)", 64, "0", "1" * 64, "1" + "0" * 63),
    _bits("BIT VARYING(5)", 5, "101", "11111"),
    _bits("BIT VARYING(70)", 70, "1" * 70, "1"),
    exact("SMALLINT", field("int16"), "Nullable(Int16)", -32768, 32767),
    exact("INTEGER", field("int32"), "Nullable(Int32)", -(2**31), 2**31 - 1),
    exact("BIGINT", field("int64"), "Nullable(Int64)", -(2**63), 2**63 - 1),
    exact("OID", field("int64"), "Nullable(Int64)", 0, 2**32 - 1),
    exact("BIGSERIAL", field("int64", optional=False, default=0), "Int64", 1, 2**63 - 1),
    exact("a domain over integer", field("int32"), "Nullable(Int32)", 5),
    Case(
        "REAL",
        field("float"),
        "Nullable(Float32)",
        ((1.1, "1.1"), ("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), (1e-45, "1e-45")),
    ),
    Case(
        "DOUBLE PRECISION",
        field("double"),
        "Nullable(Float64)",
        (
            (1.7976931348623157e308, "1.7976931348623157e308"),
            ("NaN", "nan"),
            ("Infinity", "inf"),
            ("-Infinity", "-inf"),
        ),
    ),
    # Text
    texts("CHAR(5)", field("string"), "Nullable(String)", "ab   ", "     "),
    texts("VARCHAR(20)", field("string")),
    texts("TEXT", field("string")),
    texts("TEXT NOT NULL", field("string", optional=False), "String", "", "x"),
    texts("CITEXT", field("string"), "Nullable(String)", "MiXeD", "ÄÖ"),
    texts("NAME", field("string"), "Nullable(String)", "pg_class"),
    texts("JSON", field("string", DATA + "Json"), "Nullable(String)", '{"a": 1,  "a": 2}', "null", " [1 ] "),
    texts("JSONB", field("string", DATA + "Json"), "Nullable(String)", '{"a": 1.10}', "123456789012345678901234567890"),
    texts("XML", field("string", DATA + "Xml"), "Nullable(String)", "<a>é</a>", "<a/>"),
    texts(
        "UUID",
        field("string", DATA + "Uuid"),
        "Nullable(UUID)",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
    texts(
        "ENUM",
        field("string", DATA + "Enum", allowed="sad,ok,happy"),
        "LowCardinality(Nullable(String))",
        "sad",
        "happy",
    ),
    texts("LTREE", field("string", DATA + "Ltree"), "Nullable(String)", "Top.Science.Astronomy", ""),
    texts("TSVECTOR", field("string", DATA + "Tsvector"), "Nullable(String)", "'a':1 'cat':2A"),
    texts("INET", field("string"), "Nullable(String)", "192.168.2.0/24", "::1", "10.1.2.3"),
    texts("CIDR", field("string"), "Nullable(String)", "192.168.0.0/16", "2001:4f8:3:ba::/64"),
    texts("MACADDR", field("string"), "Nullable(String)", "08:00:2b:01:02:03"),
    texts("MACADDR8", field("string"), "Nullable(String)", "08:00:2b:01:02:03:04:05"),
    texts("INT4RANGE", field("string"), "Nullable(String)", "[1,10)", "empty", "(,)"),
    texts("INT8RANGE", field("string"), "Nullable(String)", "[1,9223372036854775807)"),
    texts("NUMRANGE", field("string"), "Nullable(String)", "[1.5,2.50]"),
    texts("TSRANGE", field("string"), "Nullable(String)", '["2024-01-01 00:00:00",infinity)'),
    texts("TSTZRANGE", field("string"), "Nullable(String)", '["2024-01-01 00:00:00+00",)'),
    texts("DATERANGE", field("string"), "Nullable(String)", "[2024-01-01,2024-02-01)"),
    texts("PG_LSN", field("string"), "Nullable(String)", "16/B374D848"),
    # Binary
    *octets("BYTEA"),
    # Key-value
    Case(
        "HSTORE, map",
        field("map", keys=field("string", optional=False), values=field("string")),
        "Nullable(Tuple(items Map(String, Nullable(String))))",
        (({"a": "1", "b": None, "": "é"}, "({'a':'1','b':NULL,'':'é'})"), ({}, "({})")),
    ),
    texts("HSTORE, json", field("string", DATA + "Json"), "Nullable(String)", '{"a":"1","b":null}', "{}"),
    # Temporal
    *dates("DATE", "0001-01-01", "1582-10-15", "1969-12-31", "2024-02-29", "9999-12-31", modes=_MODES),
    Case(
        "DATE beyond",
        field("int32", TIME + "Date"),
        "Nullable(String)",
        (
            (-2147472692, "infinity"),
            (-2147472691, "-infinity"),
            (-622191234, "infinity"),
            (-625821272, "-infinity"),
            (2145042905, "5874897-12-31"),
            (-719529, "0002-12-31 BC"),
            (-2440588, "4714-11-24 BC"),
            (0, "1970-01-01"),
        ),
        untold="a number into String stays a number",
    ),
    *times("TIME(3)", 3, "00:00:00", "12:34:56.789", "24:00:00", modes=_MODES),
    *times("TIME", 6, "00:00:00", "12:34:56.789012", "24:00:00", modes=_MODES),
    texts("TIMETZ", field("string", TIME + "ZonedTime"), "Nullable(String)", "12:34:56.789012Z", "00:00:00Z"),
    *datetimes("TIMESTAMP(3)", 3, "0001-01-01 00:00:00", "2024-02-29 12:34:56.789", modes=_MODES),
    *datetimes("TIMESTAMP", 6, "0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999", modes=_MODES[:5]),
    *datetimes("TIMESTAMP, near", 6, "1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.789012", modes=_MODES),
    Case(
        "TIMESTAMP beyond",
        field("int64", TIME + "MicroTimestamp"),
        "Nullable(String)",
        (
            (9223372036825200000, "infinity"),
            (-9223372036832400000, "-infinity"),
            (-62167219200000001, "0002-12-31 23:59:59.999999 BC"),
            (253402300800000000, "10000-01-01 00:00:00"),
            (0, "1970-01-01 00:00:00"),
        ),
        untold="a number into String stays a number",
    ),
    zoned("TIMESTAMPTZ", "2024-02-29 12:34:56.789012", "1969-12-31 23:59:59.999999", "0001-01-01 00:00:00"),
    Case(
        "TIMESTAMPTZ beyond",
        field("string", TIME + "ZonedTimestamp"),
        "Nullable(String)",
        (
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
            ("+294276-12-31T23:59:59.999999Z", "294276-12-31 23:59:59.999999+00"),
            ("-4712-01-01T00:00:00Z", "4713-01-01 00:00:00+00 BC"),
            ("2024-02-29T12:34:56Z", "2024-02-29 12:34:56+00"),
        ),
        untold="a text into String stays as sent",
    ),
    exact("INTERVAL, numeric", field("int64", TIME + "MicroDuration"), "Nullable(Int64)", 36572706789000, -1, 0),
    texts(
        "INTERVAL, string",
        field("string", TIME + "Interval"),
        "Nullable(String)",
        "P1Y2M3DT4H5M6.78S",
        "P0Y0M-1DT0H0M0S",
    ),
    # Decimal
    *decimals("NUMERIC(5,2)", 5, 2, "999.99", "-999.99", "0.00", "1.50"),
    *decimals("NUMERIC(38,10)", 38, 10, "9" * 28 + "." + "9" * 10, "-0.0000000001"),
    *decimals("NUMERIC(76,38)", 76, 38, "9" * 38 + "." + "9" * 38, "-" + "9" * 38 + "." + "9" * 38),
    *decimals("NUMERIC(100,40)", 100, 40, "9" * 60 + "." + "9" * 40, "0." + "0" * 39 + "1", column="Nullable(String)"),
    Case(
        "NUMERIC without precision",
        _VARIABLE,
        "Nullable(String)",
        tuple(
            (_variable(t), t) for t in ("1.5", "-0.001", "12345678901234567890123456789012345678901234567890.5", "0")
        ),
    ),
    exact("NUMERIC NaN, double", field("double"), "Nullable(Float64)", 1.5),
    texts("NUMERIC NaN, string", field("string"), "Nullable(String)", "NaN", "Infinity", "1.50"),
    Case(
        "MONEY",
        field("bytes", CONNECT + "Decimal", scale=2),
        "Nullable(Decimal(38, 2))",
        ((connect_decimal("-92233720368547758.08", 2), "-92233720368547758.08"), (connect_decimal("0.01", 2), "0.01")),
    ),
    # Numbers as numbers: JsonConverter's decimal.format=NUMERIC
    Case(
        "NUMERIC(38,10), decimal.format=NUMERIC",
        field("bytes", CONNECT + "Decimal", scale=10, connect__dot__decimal__dot__precision=38),
        "Nullable(Decimal(38, 10))",
        (
            (Raw("1234567890123456789012345678.0123456789"), "1234567890123456789012345678.0123456789"),
            (Raw("-0.0000000001"), "-0.0000000001"),
            (Raw("1E+3"), "1000"),
            (7, "7"),
        ),
    ),
    # Spatial
    Case(
        "POINT",
        _POINT,
        "Nullable(Point)",
        (
            ({"x": 1.5, "y": -2, "wkb": b64(_EWKB), "srid": None}, "(1.5,-2)"),
            ({"x": math.pi, "y": 1e300, "wkb": None, "srid": None}, f"({math.pi},1e300)"),
        ),
    ),
    spatial("GEOMETRY of PostGIS", _EWKB, 4326),
    spatial("GEOGRAPHY of PostGIS", _EWKB, 4326, kind="Geography"),
    # Vectors
    Case(
        "VECTOR(2)",
        array(field("double", optional=False), DATA + "DoubleVector"),
        "Nullable(Tuple(items Array(Float64)))",
        (([1.5, -2e10], "([1.5,-20000000000])"),),
    ),
    Case(
        "HALFVEC(2)",
        array(field("float", optional=False), DATA + "FloatVector"),
        "Nullable(Tuple(items Array(Float32)))",
        (([0.5, 2], "([0.5,2])"),),
    ),
    Case(
        "SPARSEVEC",
        named(
            DATA + "SparseDoubleVector",
            {
                "dimensions": field("int16", optional=False),
                "vector": field("map", keys=field("int16", optional=False), values=field("double", optional=False)),
            },
        ),
        "Nullable(String)",
        (({"dimensions": 5, "vector": [[1, 0.5], [4, 2.5]]}, '{"dimensions":5,"vector":[[1,0.5],[4,2.5]]}'),),
    ),
    # Arrays
    _list("BOOLEAN[]", field("boolean"), "Nullable(Bool)", ([True, None, False], "[true,NULL,false]"), ([], "[]")),
    _list("SMALLINT[]", field("int16"), "Nullable(Int16)", ([-32768, None], "[-32768,NULL]")),
    _list("INTEGER[]", field("int32"), "Nullable(Int32)", ([1, None, -3], "[1,NULL,-3]"), ([], "[]")),
    _list("INTEGER[] NOT NULL members", field("int32", optional=False), "Int32", ([1, 2], "[1,2]")),
    _list("BIGINT[]", field("int64"), "Nullable(Int64)", ([2**63 - 1, -(2**63)], f"[{2**63 - 1},{-(2**63)}]")),
    _list("REAL[]", field("float"), "Nullable(Float32)", ([1.5, "NaN", None], "[1.5,nan,NULL]")),
    _list("DOUBLE PRECISION[]", field("double"), "Nullable(Float64)", ([0.1, "-Infinity"], "[0.1,-inf]")),
    _list("TEXT[]", field("string"), "Nullable(String)", (["a", None, "", "é'"], "['a',NULL,'','é\\'']")),
    _list("VARCHAR(3)[]", field("string"), "Nullable(String)", (["abc"], "['abc']")),
    _list(
        "NUMERIC(10,2)[]",
        field("bytes", CONNECT + "Decimal", scale=2, connect__dot__decimal__dot__precision=10),
        "Nullable(Decimal(10, 2))",
        ([connect_decimal("1.50", 2), None, connect_decimal("-99999999.99", 2)], "[1.5,NULL,-99999999.99]"),
    ),
    _list("NUMERIC[]", _VARIABLE, "Nullable(String)", ([_variable("1.25"), None], "['1.25',NULL]")),
    _list(
        "UUID[]",
        field("string", DATA + "Uuid"),
        "Nullable(UUID)",
        (["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], "['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11']"),
    ),
    _list(
        "DATE[]", field("int32", TIME + "Date"), "Nullable(Date32)", ([0, None, -1], "['1970-01-01',NULL,'1969-12-31']")
    ),
    _list("TIME[]", field("int64", TIME + "MicroTime"), "Nullable(Int64)", ([86400000000, 1], "[86400000000,1]")),
    _list(
        "TIMESTAMP[]",
        field("int64", TIME + "MicroTimestamp"),
        "Nullable(DateTime64(6, 'UTC'))",
        ([1, None], "['1970-01-01 00:00:00.000001',NULL]"),
    ),
    _list(
        "TIMESTAMPTZ[]",
        field("string", TIME + "ZonedTimestamp"),
        "Nullable(DateTime64(6, 'UTC'))",
        (["2024-01-01T00:00:00Z"], "['2024-01-01 00:00:00.000000']"),
    ),
    _list("BYTEA[]", field("bytes"), "Nullable(String)", ([b64(b"A\x00B")], "['A\\0B']"), untold=_BASE64),
    _list("JSONB[]", field("string", DATA + "Json"), "Nullable(String)", (['{"a": 1}'], "['{\"a\": 1}']")),
    _list("INET[]", field("string"), "Nullable(String)", (["10.0.0.1/8"], "['10.0.0.1/8']")),
    _list("ENUM[]", field("string", DATA + "Enum", allowed="a,b"), "Nullable(String)", (["a", "b"], "['a','b']")),
    _list("CITEXT[]", field("string"), "Nullable(String)", (["A"], "['A']")),
    _list("INT4RANGE[]", field("string"), "Nullable(String)", (["[1,2)"], "['[1,2)']")),
    Case(
        "INTEGER[][]",
        array(array(field("int32"))),
        "Nullable(Tuple(items Array(Array(Nullable(Int32)))))",
        (([[1, None], []], "([[1,NULL],[]])"), ([], "([])")),
    ),
    Case(
        "TEXT[] NOT NULL",
        {**array(field("string")), "optional": False},
        "Array(Nullable(String))",
        ((["a"], "['a']"), ([], "[]")),
    ),
]
