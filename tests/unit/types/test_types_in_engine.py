"""Every column type that ``init`` chooses or a table may have: converted, inserted as Arrow, read back equal."""

import tempfile
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.types import WIDE, arrow_type, clickhouse_type, converter
from ch_sink.types.arrow import carried
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType
from tests.support.engine import Engine

D, T, C = "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data."


def decimal(precision: int | None, scale: int) -> SourceType:
    declared = (("connect.decimal.precision", str(precision)),) if precision else ()
    return SourceType("bytes", C + "Decimal", (("scale", str(scale)), *declared))


def named(kind: str, name: str, **parameters: str) -> SourceType:
    return SourceType(kind, name, tuple(parameters.items()))


INT32, STRING, FLOAT = SourceType("int32"), SourceType("string"), SourceType("float64")
POINT = SourceType("struct", D + "geometry.Point")

# source type, column type (None: what init chooses), literals, what the engine shows as text
CASES: list[tuple[SourceType | None, str | None, list[Any], list[str]]] = [
    (SourceType("int8"), None, [-128, None, 127], ["-128", "ᴺᵁᴸᴸ", "127"]),
    (SourceType("int64"), None, [-(2**63), 2**63 - 1], ["-9223372036854775808", "9223372036854775807"]),
    (SourceType("int64"), "UInt64", [-1, 5, 2**64 - 1], ["18446744073709551615", "5", "18446744073709551615"]),
    (SourceType("int64"), "Int256", [-5, 7], ["-5", "7"]),
    (SourceType("int16"), "Bool", [1, 0], ["true", "false"]),
    (SourceType("boolean"), "UInt8", [True, False], ["1", "0"]),
    (SourceType("float32"), None, [1.1, "NaN"], ["1.1", "nan"]),
    (FLOAT, None, [-1.7976931348623157e308, "-Infinity", 5e-324], ["-1.7976931348623157e308", "-inf", "5e-324"]),
    (decimal(20, 4), None, [b"\xfa\x94\x38\xa1\xd2\x9c\xf0\x00\x01", b"\x00"], ["-9999999999999999.9999", "0"]),
    (decimal(5, 2), None, [b"\x01\x86\x9f", b"\xff"], ["999.99", "-0.01"]),
    (decimal(76, 40), None, [(-(10**76 - 1)).to_bytes(33, "big", signed=True)], ["-" + "9" * 36 + "." + "9" * 40]),
    (decimal(None, 2), None, [b"\xfe\x1d\xc0"], ["-1234.56"]),
    (decimal(100, 40), None, [b"\x01"], ["0." + "0" * 39 + "1"]),
    (decimal(20, 0), "UInt64", [b"\x00" + b"\xff" * 8], ["18446744073709551615"]),
    (named("struct", D + "VariableScaleDecimal"), None, [{"scale": -2, "value": b"\x05"}], ["500"]),
    (STRING, "Decimal(9, 3)", ["-1.5", "1e3"], ["-1.5", "1000"]),
    (
        named("int32", T + "Date"),
        None,
        [-719528, -719162, 0, 2932896],
        ["0000-01-01", "0001-01-01", "1970-01-01", "9999-12-31"],
    ),
    (named("int32", T + "Date"), "Date", [0, 65535], ["1970-01-01", "2149-06-06"]),
    (named("int32", T + "Date"), "DateTime64(3, 'UTC')", [-1], ["1969-12-31 00:00:00.000"]),
    (
        SourceType("int32", T + "Date", (WIDE,)),
        None,
        [2145042905, -2147472692, -719529],
        ["5874897-12-31", "infinity", "0002-12-31 BC"],
    ),
    (named("int64", T + "Timestamp"), None, [-1, 0], ["1969-12-31 23:59:59.999", "1970-01-01 00:00:00.000"]),
    (named("int64", T + "Timestamp"), "DateTime('UTC')", [1999, 0], ["1970-01-01 00:00:01", "1970-01-01 00:00:00"]),
    (named("int64", T + "Timestamp"), "DateTime64(6, 'UTC')", [-1], ["1969-12-31 23:59:59.999000"]),
    (
        named("int64", T + "MicroTimestamp"),
        None,
        [253402300799999999, -62167219200000000],
        ["9999-12-31 23:59:59.999999", "0000-01-01 00:00:00.000000"],
    ),
    (
        named("int64", T + "MicroTimestamp"),
        "DateTime64(3, 'UTC')",
        [-1, 1999],
        ["1969-12-31 23:59:59.999", "1970-01-01 00:00:00.001"],
    ),
    (
        named("int64", T + "MicroTimestamp"),
        "DateTime64(4, 'UTC')",
        [-1, -100001, 123456],
        ["1969-12-31 23:59:59.9999", "1969-12-31 23:59:59.8999", "1970-01-01 00:00:00.1234"],
    ),
    (
        named("int64", T + "NanoTimestamp"),
        "DateTime64(7, 'UTC')",
        [-1, 199, -(2**63) + 8],
        ["1969-12-31 23:59:59.9999999", "1970-01-01 00:00:00.0000001", "1677-09-21 00:12:43.1452242"],
    ),
    (
        named("string", T + "ZonedTimestamp"),
        "DateTime64(5, 'UTC')",
        ["1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.123456789Z", "2024-01-01T00:00:00.987654321Z"],
        ["1969-12-31 23:59:59.99999", "1969-12-31 23:59:59.12345", "2024-01-01 00:00:00.98765"],
    ),
    (named("int64", T + "MicroTimestamp"), "Date32", [-1], ["1969-12-31"]),
    (
        named("int64", T + "NanoTimestamp"),
        None,
        [-1, 2**62],
        ["1969-12-31 23:59:59.999999999", "2116-02-20 23:53:38.427387904"],
    ),
    (
        named("string", T + "ZonedTimestamp"),
        None,
        ["2024-02-29T12:34:56.7+02:00", "0001-01-01T00:00:00Z"],
        ["2024-02-29 10:34:56.700000", "0001-01-01 00:00:00.000000"],
    ),
    (
        named("string", T + "ZonedTimestamp"),
        "DateTime64(6, 'Europe/Berlin')",
        ["2024-02-29T12:34:56Z"],
        ["2024-02-29 13:34:56.000000"],
    ),
    (
        SourceType("string", T + "ZonedTimestamp", (WIDE,)),
        None,
        ["+294276-12-31T23:59:59.999999Z", "-infinity"],
        ["294276-12-31 23:59:59.999999+00", "-infinity"],
    ),
    (named("int64", T + "MicroTime"), None, [-3020399000000, 86400000000], ["-3020399000000", "86400000000"]),
    (named("int64", T + "MicroTime"), "String", [-3020399000000, 86399999999], ["-838:59:59", "23:59:59.999999"]),
    (named("int64", T + "MicroTime"), "Time64(6)", [0, 86399999999], ["00:00:00.000000", "23:59:59.999999"]),
    (named("int32", T + "Time"), "Time64(3)", [45296789], ["12:34:56.789"]),
    (named("int32", T + "Year"), None, [0, 1901, 2155], ["0", "1901", "2155"]),
    (named("int64", T + "MicroDuration"), None, [36572706789000], ["36572706789000"]),
    (named("string", T + "IsoDate"), None, ["2024-02-29Z"], ["2024-02-29"]),
    (
        named("string", D + "Uuid"),
        None,
        ["00112233-4455-6677-8899-aabbccddeeff", None],
        ["00112233-4455-6677-8899-aabbccddeeff", "ᴺᵁᴸᴸ"],
    ),
    (named("string", D + "Enum", allowed="a,b"), None, ["a", None], ["a", "ᴺᵁᴸᴸ"]),
    (named("string", D + "Enum", allowed="a,b"), "Enum8('a' = 1, 'b' = -2)", ["b", "a"], ["b", "a"]),
    (named("string", D + "Enum"), "Enum16('a' = 1000)", ["a"], ["a"]),
    (named("string", D + "EnumSet"), "Array(LowCardinality(String))", ["x,z", ""], ["['x','z']", "[]"]),
    (named("bytes", D + "Bits", length="64"), None, [b"\xff" * 8, b"", b"\x05"], ["18446744073709551615", "0", "5"]),
    (named("bytes", D + "Bits", length="70"), None, [b"\x03"], ["0" * 68 + "11"]),
    (SourceType("bytes"), None, [b"\x00A\x00", b""], ["\x00A\x00", ""]),
    (SourceType("bytes"), "FixedString(4)", [b"abcd"], ["abcd"]),
    (STRING, None, ["é漢🦀", "a\tb\n", None], ["é漢🦀", "a\tb\n", "ᴺᵁᴸᴸ"]),
    (STRING, "JSON", ['{"a":1}'], ['{"a":1}']),
    (STRING, "IPv4", ["10.0.0.1"], ["10.0.0.1"]),
    (STRING, "IPv6", ["::1", "10.0.0.1"], ["::1", "::ffff:10.0.0.1"]),
    (STRING, "Float64", ["1.5"], ["1.5"]),
    (STRING, "LowCardinality(String)", ["a", "b", "a"], ["a", "b", "a"]),
    (SourceType("array", items=INT32), None, [[1, None, -3], [], None], ["([1,NULL,-3])", "([])", "ᴺᵁᴸᴸ"]),
    (SourceType("array", items=INT32), "Array(Nullable(Int32))", [[1, None], None], ["[1,NULL]", "[]"]),
    (SourceType("array", items=decimal(10, 2)), None, [[b"\x00\x96", None]], ["([1.5,NULL])"]),
    (
        SourceType("array", items=named("string", D + "Uuid")),
        "Array(UUID)",
        [["00112233-4455-6677-8899-aabbccddeeff"]],
        ["['00112233-4455-6677-8899-aabbccddeeff']"],
    ),
    (SourceType("array", items=SourceType("array", items=INT32)), "Array(Array(Int32))", [[[1], []]], ["[[1],[]]"]),
    (
        SourceType("map", keys=STRING, items=STRING),
        None,
        [{"a": "1", "b": None}, {}, None],
        ["({'a':'1','b':NULL})", "({})", "ᴺᵁᴸᴸ"],
    ),
    (
        SourceType("map", keys=STRING, items=STRING),
        "Map(String, Nullable(String))",
        [{"a": "1"}, None],
        ["{'a':'1'}", "{}"],
    ),
    (POINT, None, [{"x": 1.5, "y": -2.0}, None], ["(1.5,-2)", "ᴺᵁᴸᴸ"]),
    (POINT, "Tuple(Float64, Float64)", [{"x": 1.5, "y": -2.0}], ["(1.5,-2)"]),
    (named("struct", D + "geometry.Geometry"), None, [{"wkb": b"\x01\x02", "srid": 4326}], ["\x01\x02"]),
    (
        SourceType("array", D + "DoubleVector", items=SourceType("float64", optional=False)),
        None,
        [[1.5, 2.0]],
        ["([1.5,2])"],
    ),
]


@pytest.mark.parametrize(("source", "column_type", "literals", "shown"), CASES)
def test_values_come_back_as_they_were_sent(
    engine: Engine, source: SourceType, column_type: str | None, literals: list[Any], shown: list[str]
) -> None:
    chosen = column_type or clickhouse_type(source)
    made = converter(source, Column("x", chosen), encoding="avro", policy=ValuePolicy())
    converted = made.convert(literals)
    assert converted.array.type == made.arrow == arrow_type(chosen)
    engine.run("DROP TABLE IF EXISTS d.t")
    engine.run(f"CREATE TABLE d.t (i UInt32, x {chosen}) ENGINE = MergeTree ORDER BY i")
    rows = pa.table({"i": pa.array(range(len(literals)), pa.uint32()), "x": converted.array})
    insert_arrow(engine, rows)
    assert texts(engine) == shown
    again = read_arrow(engine, chosen)
    engine.run("TRUNCATE TABLE d.t")
    insert_arrow(engine, pa.table({"i": rows["i"], "x": again.cast(made.arrow)}))
    assert texts(engine) == shown, "a stored row that was read back is inserted unchanged"
    assert str(read_arrow(engine, chosen)) == str(again)


def insert_arrow(engine: Engine, rows: pa.Table) -> None:
    """FORMAT Arrow, the way of the HTTP interface."""

    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.ipc.new_file(file.name, rows.schema) as writer:
            writer.write_table(rows)
        engine.run(f"INSERT INTO d.t SELECT * FROM file('{file.name}', 'Arrow')")


def read_arrow(engine: Engine, kind: str) -> pa.Array:
    answer = engine._session.query(f"SELECT {carried('d.t.x', kind)} AS x FROM d.t ORDER BY i", "Arrow")
    column = pa.ipc.open_file(pa.BufferReader(answer.bytes())).read_all()["x"].combine_chunks()
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def texts(engine: Engine) -> list[str]:
    return [str(row["x"]) for row in engine.rows("SELECT ifNull(toString(x), 'ᴺᵁᴸᴸ') AS x FROM d.t ORDER BY i")]
