"""Defaults that a source's schema states, as the DEFAULT of a column, read back from the engine."""

import base64
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ch_sink.decode.unknown_columns import declared_unknown
from ch_sink.table.evolve import filled
from ch_sink.table.model import Engine as TableEngine
from ch_sink.table.model import Family, TargetTable
from ch_sink.types import WIDE, clickhouse_type
from ch_sink.types.build import default_sql, is_constant, wide_enough
from ch_sink.types.column import Column, Years
from ch_sink.types.connect import SourceType, of_system
from tests.support.engine import Engine

KEYED = TableEngine(Family.REPLACING, "ReplacingMergeTree", version_column="_version")
D, T, C = "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data."


def stated(
    kind: str, default: object, name: str | None = None, *, optional: bool = True, **parameters: str
) -> SourceType:
    """A type with a default; double underscores in a parameter's name are dots."""
    given = tuple((key.replace("__", "."), text) for key, text in parameters.items())
    return SourceType(kind, name, given, optional, default, True)


def raw(value: bytes) -> str:
    return base64.b64encode(value).decode()


def decimal(text: str, scale: int, precision: int | None = None) -> SourceType:
    unscaled = int(text.replace(".", ""))
    declared = {"scale": str(scale)} | ({"connect__decimal__precision": str(precision)} if precision else {})
    size = max((unscaled.bit_length() + 8) // 8, 1)
    return stated("bytes", raw(unscaled.to_bytes(size, "big", signed=True)), C + "Decimal", **declared)


TEXTS = [
    "a::b",
    "f(x)",
    "(none)",
    "now()",
    "CURRENT_TIMESTAMP",
    "NULL",
    "it's\\\n\t",
    "'quoted'",
    "",
    " ",
    "ünï 🦊",
    "a\x00b\r",
]

CASES: list[tuple[SourceType, str | None, str]] = [
    # source type with its default, column type (None: what init chooses), what a row without a value reads as text
    (stated("int8", -128), None, "-128"),
    (stated("int16", 1), None, "1"),
    (stated("int32", -5), None, "-5"),
    (stated("int32", -5, optional=False), None, "-5"),
    (stated("int64", 2**63 - 1), None, "9223372036854775807"),
    (stated("int64", 7), "Int128", "7"),
    (stated("int64", -7), "Int256", "-7"),
    (stated("float32", 1.5), None, "1.5"),
    (stated("float64", 1e300), None, "1e300"),
    (stated("float64", 3), None, "3"),
    (stated("boolean", True), None, "true"),
    (stated("boolean", False), None, "false"),
    (stated("boolean", True), "UInt8", "1"),
    (stated("int16", 1), "Bool", "true"),
    *((stated("string", text), None, text) for text in TEXTS),
    (stated("string", "a", D + "Enum"), None, "a"),
    (stated("string", "a,b", D + "EnumSet"), None, "a,b"),
    (stated("string", "a,b", D + "EnumSet"), "Array(String)", "['a','b']"),
    (stated("string", '{"a": 1}', D + "Json"), None, '{"a": 1}'),
    (stated("string", "<a/>", D + "Xml"), None, "<a/>"),
    (stated("string", "x.y", D + "Ltree"), None, "x.y"),
    (
        stated("string", "00112233-4455-6677-8899-aabbccddeeff", D + "Uuid"),
        None,
        "00112233-4455-6677-8899-aabbccddeeff",
    ),
    (decimal("1.50", 2, 10), None, "1.5"),
    (decimal("-0.01", 2, 10), None, "-0.01"),
    (decimal("-1.50", 2), None, "-1.5"),
    (decimal("1" * 70 + ".25", 2, 76), None, "1" * 70 + ".25"),
    (decimal("1.25", 2, 90), None, "1.25"),
    (decimal("18446744073709551615", 0), "UInt64", "18446744073709551615"),
    (stated("string", "-12.50"), "Nullable(Decimal(10, 2))", "-12.5"),
    (stated("struct", {"scale": 2, "value": raw(b"\x01\x2c")}, D + "VariableScaleDecimal"), None, "3.00"),
    (stated("bytes", raw(b"text")), None, "text"),
    (stated("bytes", raw(b"\x05"), D + "Bits", length="8"), None, "5"),
    (stated("bytes", raw(b"\x05" + b"\x00" * 8), D + "Bits", length="70"), None, "101".rjust(70, "0")),
    (stated("int32", 19000, T + "Date"), None, "2022-01-08"),
    (stated("int32", -1, C + "Date"), None, "1969-12-31"),
    (stated("string", "2022-01-08", T + "IsoDate"), None, "2022-01-08"),
    (replace(stated("int32", -800_000, T + "Date"), parameters=(WIDE,)), None, "0222-09-04 BC"),
    (stated("int64", -1, T + "Timestamp"), None, "1969-12-31 23:59:59.999"),
    (stated("int64", 1_700_000_000_123, C + "Timestamp"), None, "2023-11-14 22:13:20.123"),
    (stated("int64", 1_700_000_000_123_456, T + "MicroTimestamp"), None, "2023-11-14 22:13:20.123456"),
    (stated("int64", 1_700_000_000_123_456_789, T + "NanoTimestamp"), None, "2023-11-14 22:13:20.123456789"),
    (stated("string", "2024-01-01T00:00:00.5Z", T + "ZonedTimestamp"), None, "2024-01-01 00:00:00.500000"),
    (stated("string", "2024-01-01T00:00:00.5", T + "IsoTimestamp"), None, "2024-01-01 00:00:00.500000"),
    (stated("int32", 86_399_000, T + "Time"), None, "86399000"),
    (stated("int32", 3_600_000, C + "Time"), None, "3600000"),
    (stated("int64", 3_600_000_000, T + "MicroTime"), None, "3600000000"),
    (stated("int64", 3_600_000_000_000, T + "NanoTime"), None, "3600000000000"),
    (stated("string", "12:00:00Z", T + "ZonedTime"), None, "12:00:00Z"),
    (stated("int64", 86_400_000_000, T + "MicroDuration"), None, "86400000000"),
    (stated("int32", 2024, T + "Year"), None, "2024"),
    (
        replace(stated("array", ["a", "it's"]), items=SourceType("string")),
        None,
        "(['a','it\\'s'])",
    ),
    (replace(stated("array", []), items=SourceType("int32"), optional=False), None, "[]"),
    (replace(stated("array", [1, None]), items=SourceType("int32"), optional=False), None, "[1,NULL]"),
    (
        replace(stated("map", {"a": "b"}), keys=SourceType("string"), items=SourceType("string"), optional=False),
        None,
        "{'a':'b'}",
    ),
]


@pytest.fixture(scope="module")
def read(engine: Engine) -> dict[str, list[str]]:
    """Of each case's column: rows from before and after it was added, and its expression alone, as text."""
    kinds = {f"v{i}": chosen or clickhouse_type(source) for i, (source, chosen, _) in enumerate(CASES)}
    defaults = {f"v{i}": default_sql(source, kinds[f"v{i}"]) for i, (source, _, _) in enumerate(CASES)}
    engine.run("CREATE OR REPLACE TABLE t.d (k Int8) ENGINE = MergeTree ORDER BY k")
    engine.run("INSERT INTO t.d VALUES (1)")
    engine.run("ALTER TABLE t.d " + ", ".join(f"ADD COLUMN {v} {kinds[v]} DEFAULT {defaults[v]}" for v in kinds))
    engine.run("INSERT INTO t.d (k) VALUES (2)")
    stored = {row["name"]: row["e"] for row in engine.rows(STORED)}
    assert all(is_constant(stored[v], ["k", v]) for v in kinds)  # rows of an insert that has the column get it too
    shown = engine.rows("SELECT " + ", ".join(f"toString({v}) AS {v}" for v in kinds) + " FROM t.d ORDER BY k")
    shown += engine.rows("SELECT " + ", ".join(f"toString(CAST({stored[v]} AS {kinds[v]})) AS {v}" for v in kinds))
    return {v: [row[v] for row in shown] for v in kinds}


STORED = "SELECT name, default_expression AS e FROM system.columns WHERE table = 'd' AND name LIKE 'v%'"


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: str(CASES[place][0].default)[:20])
def test_a_row_without_a_value_reads_the_default(read: dict[str, list[str]], place: int) -> None:
    assert read[f"v{place}"] == [CASES[place][2]] * 3


@pytest.mark.parametrize(("years", "kind"), [(Years(), "Date32"), (Years((1900, 2299), (1900, 2299)), "String")])
def test_a_new_column_of_a_table_holds_its_default(years: Years, kind: str) -> None:
    forever = stated("int32", 2_932_896, T + "Date", optional=False)
    table = TargetTable("d", "t", KEYED, (Column("id", "Int64"),), ("id",), years=years)
    [new] = declared_unknown(table, {"id": SourceType("int64", optional=False), "valid_to": forever})
    assert (new.clickhouse_type, bool(new.default), new.filled) == (kind, True, True)
    assert ("ch_sink.wide" in new.comment) == (kind == "String")


def test_bytes_that_are_no_text_come_back(engine: Engine) -> None:
    default = default_sql(stated("bytes", raw(b"\x00\xff'\\")), "String")
    assert default is not None
    engine.run(f"CREATE OR REPLACE TABLE t.d (k Int8, v String DEFAULT {default}) ENGINE = MergeTree ORDER BY k")
    engine.run("INSERT INTO t.d (k) VALUES (1)")
    assert engine.rows("SELECT hex(v) AS v FROM t.d") == [{"v": "00FF275C"}]
    assert is_constant(engine.rows(STORED)[0]["e"], ["k", "v"])


@pytest.mark.parametrize(
    "source",
    [
        SourceType("int32"),
        stated("int32", None),
        # 1970 is what connectors write for CURRENT_TIMESTAMP.
        stated("string", "1970-01-01T00:00:00Z", T + "ZonedTimestamp"),
        stated("int64", 0, T + "MicroTimestamp"),
        stated("int64", 0, T + "Timestamp"),
        stated("string", "infinity", T + "ZonedTimestamp"),
        stated("string", "now()", T + "ZonedTimestamp"),
        stated("string", "gen_random_uuid()", D + "Uuid"),
        stated("int32", "nonsense"),
        stated("bytes", "no base64!"),
        stated("int32", 10**9, T + "Date"),  # beyond Date32
        replace(stated("string", raw(b"x")), parameters=(("__debezium.source.column.type", "BLOB"),)),
    ],
    ids=lambda source: str(source.default),
)
def test_a_default_that_is_no_value_of_the_column_is_left_out(source: SourceType) -> None:
    assert default_sql(source, clickhouse_type(source)) is None


@pytest.mark.parametrize(
    "source",
    [
        stated("int64", 0, T + "MicroTimestamp"),  # now()
        stated("int32", 0, T + "Date"),  # CURRENT_DATE
        stated("string", "1970-01-01Z", T + "IsoDate"),
        stated("string", "00000000-0000-0000-0000-000000000000", D + "Uuid"),  # gen_random_uuid()
        stated("string", "CURRENT_USER"),
        replace(stated("int64", 0), parameters=(("__debezium.source.column.type", "BIGSERIAL"),)),
    ],
    ids=lambda source: str(source.name or source.default),
)
def test_what_connectors_state_for_functions_says_nothing_of_stored_rows(source: SourceType) -> None:
    source = of_system({"v": source}, "postgresql")["v"]
    assert not filled(source, default_sql(source, clickhouse_type(source)))
    assert filled(replace(source, default=None, has_default=False), None)
    five = stated("int32", 5)
    assert filled(five, default_sql(five, "Nullable(Int32)"))


def test_what_postgresql_states_for_functions_and_constants_is_doubtful() -> None:
    sources = [stated("int32", 0), *(stated("string", text) for text in ("", "0", "0.00", "0.10", "x"))]
    found = of_system({str(n): source for n, source in enumerate(sources)}, "postgresql")
    assert [source.default_is for source in found.values()] == [*["doubtful"] * 4, *["stated"] * 2]


def test_a_column_whose_default_is_beyond_the_servers_dates_is_text() -> None:
    """Servers before 26.9 would show 2299-12-31."""
    forever, lts = stated("int32", 2_932_896, T + "Date"), Years(date=(1900, 2299), time=(1900, 2299))
    assert default_sql(forever, "Date32") == "toDate32('1970-01-01') + 2932896"
    assert default_sql(forever, "Date32", years=lts) is None
    assert wide_enough(forever, Years()) == forever
    wide = wide_enough(forever, lts)
    assert (clickhouse_type(wide), default_sql(wide, "Nullable(String)", years=lts)) == (
        "Nullable(String)",
        "'9999-12-31'",
    )


@pytest.mark.parametrize(
    ("text", "columns", "is_value"),
    [
        ("(id)::text", ("id", "v"), False),
        ("upper((name)::text)", ("id", "name"), False),
        ("((first || ' '::text) || last)", ("first", "last"), False),
        ("(id)::text", ("k", "v"), True),
        ("id", ("id", "v"), True),
        ("a::b", ("id", "v"), True),
        ("it's (id)::text", ("id",), True),  # no SQL
    ],
)
def test_only_an_expression_over_the_rows_columns_is_one(text: str, columns: Sequence[str], is_value: bool) -> None:
    """PostgreSQL's connector states a generated column's expression as its default."""
    assert (default_sql(stated("string", text), "Nullable(String)", columns) is not None) is is_value


def test_what_varies_is_no_constant() -> None:
    assert is_constant("CAST('1', 'Decimal(10, 2)')", ["a"])
    assert not is_constant("now()", ["a"])
    assert not is_constant("toString(a)", ["a"])
