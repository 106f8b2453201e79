"""Rows grouped by partition on the client stand together exactly as the engine's own partitions hold them."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.partition import partition_groups
from ch_sink.types.column import Column
from tests.support.engine import Engine as ClickHouse

UTC = dt.UTC


def days(low: str, high: str) -> st.SearchStrategy[dt.date]:
    return st.dates(dt.date.fromisoformat(low), dt.date.fromisoformat(high))


def moments(low: str, high: str) -> st.SearchStrategy[dt.datetime]:
    return st.datetimes(dt.datetime.fromisoformat(low), dt.datetime.fromisoformat(high)).map(
        lambda t: t.replace(tzinfo=UTC)
    )


def whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.integers(max(low, -300), min(high, 300)), st.integers(low, high))


@dataclass(frozen=True)
class Kind:
    type: str
    arrow: pa.DataType
    values: st.SearchStrategy[Any]


KINDS = {
    "i8": Kind("Int8", pa.int8(), whole(8, True)),
    "i32": Kind("Int32", pa.int32(), whole(32, True)),
    "i64": Kind("Int64", pa.int64(), whole(64, True)),
    "u8": Kind("UInt8", pa.uint8(), whole(8, False)),
    "u64": Kind("UInt64", pa.uint64(), whole(64, False)),
    "n": Kind("Nullable(Int64)", pa.int64(), st.none() | whole(64, True)),
    "s": Kind("String", pa.string(), st.sampled_from(["", "a", "b", "a'b", "é", "NULL"])),
    "lc": Kind("LowCardinality(String)", pa.string(), st.sampled_from(["x", "y", "z"])),
    "d": Kind("Date", pa.date32(), days("1970-01-08", "2149-01-01")),
    "d32": Kind("Date32", pa.date32(), days("1970-01-08", "2148-12-31")),
    "wide": Kind("Date32", pa.date32(), days("1900-01-01", "2299-12-31")),
    "nd": Kind("Nullable(Date32)", pa.date32(), st.none() | days("1970-01-08", "2100-12-31")),
    "t": Kind("DateTime('UTC')", pa.timestamp("s", "UTC"), moments("1970-01-08", "2105-12-31")),
    "t64": Kind("DateTime64(6, 'UTC')", pa.timestamp("us", "UTC"), moments("1970-01-08", "2105-12-31")),
    "far": Kind("DateTime64(3, 'UTC')", pa.timestamp("ms", "UTC"), moments("1900-01-02", "2299-12-30")),
    "nt": Kind(
        "Nullable(DateTime64(6, 'UTC'))", pa.timestamp("us", "UTC"), st.none() | moments("1971-01-08", "2105-12-31")
    ),
    "local": Kind("DateTime64(6)", pa.timestamp("us", "UTC"), moments("1970-01-08", "2105-12-31")),
}

ALWAYS = [
    "i64", "u8", "n", "s", "lc", "d", "d32", "t",
    "i64 % 8", "i64 % 200", "i64 % 255", "i64 % 256", "i64 % 1000", "i32 % 7", "i8 % 100", "u64 % 16", "u8 % 3",
    "n % 10", "modulo(i64, 300)",
    "intDiv(i64, 1000)", "intDiv(u64, 3)", "intDiv(n, 10)", "intDiv(i8, 7)",
    "toYYYYMM(d)", "toYYYYMM(d32)", "toYYYYMM(wide)", "toYYYYMM(t)", "toYYYYMM(t64)", "toYYYYMM(nd)", "toYYYYMM(nt)",
    "toYYYYMM(far)", "toYYYYMM(local, 'UTC')",
    "toYYYYMMDD(d)", "toYYYYMMDD(wide)", "toYYYYMMDD(t64)", "toYYYYMMDD(far)",
    "toYear(d)", "toYear(wide)", "toYear(t64)", "toYear(far)",
    "toDate(t)", "toDate(t64)", "toDate(d32)", "toDate(nt)",
    "toMonday(d)", "toMonday(d32)", "toMonday(t64)",
    "toStartOfWeek(d)", "toStartOfWeek(t64)", "toStartOfWeek(d, 1)", "toStartOfWeek(t64, 0, 'UTC')",
    "toStartOfMonth(d)", "toStartOfMonth(d32)", "toStartOfMonth(t64)", "toStartOfMonth(nd)",
    "toStartOfQuarter(d)", "toStartOfQuarter(t64)",
    "toStartOfYear(d)", "toStartOfYear(t)", "toStartOfYear(t64)",
    "toStartOfDay(t)", "toStartOfDay(t64)",
    "toStartOfHour(t)", "toStartOfHour(t64)",
    "dateTrunc('month', t64)", "dateTrunc('week', d)",
    "(i64 % 8, toYYYYMM(t64))", "(s, d)", "(lc, n % 3, toYear(nd))", "tuple(u8, lc)",
]  # fmt: skip
PARTLY = [
    "toDate(far)", "toMonday(wide)", "toStartOfWeek(far)", "toStartOfMonth(wide)", "toStartOfYear(far)",
    "toStartOfDay(far)", "toStartOfHour(far)", "toStartOfQuarter(wide)", "toDate(wide)",
    "toStartOfDay(d)",
]  # fmt: skip
NEVER = [
    "cityHash64(s)", "cityHash64(i64) % 8", "toYYYYMM(local)", "toHour(t)", "substring(s, 1, 1)", "i64 + 1",
    "toStartOfHour(t64, 'Europe/Berlin')", "i64 % u8", "toStartOfInterval(t, toIntervalHour(1))", "concat(s, lc)",
]  # fmt: skip


def target(expression: str) -> TargetTable:
    columns = (Column("row", "UInt32"), *(Column(name, kind.type) for name, kind in KINDS.items()))
    return TargetTable("t", "p", Engine(Family.MERGE_TREE, "MergeTree"), columns, ("row",), expression)


def used(expression: str) -> list[str]:
    from ch_sink.types.sql import columns_in

    return sorted(columns_in(expression, KINDS.keys()))


def build(expression: str, drawn: list[dict[str, Any]]) -> pa.Table:
    columns = {"row": pa.array(range(len(drawn)), pa.uint32())}
    for name in used(expression):
        columns[name] = pa.array([row[name] for row in drawn], KINDS[name].arrow)
    return pa.table(columns)


def engines_groups(engine: ClickHouse, rows: pa.Table) -> set[frozenset[int]]:
    engine.run("TRUNCATE TABLE t.p")
    engine.insert("t.p", rows)
    found: dict[str, set[int]] = {}
    for row in engine.rows("SELECT row, _partition_id AS part FROM t.p"):
        found.setdefault(row["part"], set()).add(row["row"])
    return {frozenset(group) for group in found.values()}


def prepare(engine: ClickHouse, expression: str) -> None:
    engine.run("DROP TABLE IF EXISTS t.p SYNC")
    columns = ", ".join(f"`{c.name}` {c.type}" for c in target("").columns)
    engine.run(
        f"CREATE TABLE t.p ({columns}) ENGINE = MergeTree PARTITION BY {expression} ORDER BY row "
        "SETTINGS allow_nullable_key = 1"
    )
    engine.run("SET max_partitions_per_insert_block = 0")


def compare(engine: ClickHouse, expression: str, maybe: bool, examples: int = 3) -> None:
    prepare(engine, expression)
    row = st.fixed_dictionaries({name: KINDS[name].values for name in used(expression)})

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(row, min_size=1, max_size=30))
    def same(drawn: list[dict[str, Any]]) -> None:
        rows = build(expression, drawn)
        groups = partition_groups(target(expression), rows)
        if groups is None:
            assert maybe, f"{expression} was left to the server"
            return
        assert len({label for label, _ in groups}) == len(groups)
        assert all((np.diff(index) > 0).all() for _, index in groups)
        assert {frozenset(index.tolist()) for _, index in groups} == engines_groups(engine, rows)

    same()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("expression", ALWAYS)
def test_groups_equal_the_engines_partitions(engine: ClickHouse, expression: str) -> None:
    compare(engine, expression, maybe=False)


@pytest.mark.parametrize("expression", PARTLY)
def test_values_outside_a_types_range_are_left_to_the_server_or_right(engine: ClickHouse, expression: str) -> None:
    compare(engine, expression, maybe=True)


@pytest.mark.long
@pytest.mark.parametrize("expression", ALWAYS + PARTLY)
def test_many_draws_group_as_the_engine_does(engine: ClickHouse, expression: str) -> None:
    compare(engine, expression, maybe=expression in PARTLY, examples=100)


@pytest.mark.parametrize("divisor", [8, 127, 128, 200, 255, 256, 300, 40_000, 65_536, 3_000_000_000])
def test_remainders_of_negative_numbers_share_partitions_as_in_the_engine(engine: ClickHouse, divisor: int) -> None:
    # The engine wraps -1 % 200 to 255, and -100 % 200 to 156, where 156 % 200 stands too.
    expression = f"i64 % {divisor}"
    prepare(engine, expression)
    near = [-1, -100, 156, 255, -divisor + 1, 256 - divisor, 65_536 - divisor, divisor - 1, -44, 212]
    rows = build(expression, [{"i64": v} for v in near])
    groups = partition_groups(target(expression), rows)
    assert groups is not None
    assert {frozenset(index.tolist()) for _, index in groups} == engines_groups(engine, rows)


@pytest.mark.parametrize("expression", NEVER)
def test_other_expressions_are_left_to_the_server(expression: str) -> None:
    row = {name: kind.values for name, kind in KINDS.items()}
    sample = {
        "i64": 1, "u8": 1, "s": "a", "lc": "x",
        "t": dt.datetime(2026, 1, 1, tzinfo=UTC), "t64": dt.datetime(2026, 1, 1, tzinfo=UTC),
        "local": dt.datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    assert row.keys() >= sample.keys()
    assert partition_groups(target(expression), build(expression, [sample, sample])) is None


def test_labels_are_what_the_engine_shows(engine: ClickHouse) -> None:
    drawn = [
        {"i64": 9, "t64": dt.datetime(2026, 2, 3, tzinfo=UTC), "s": "it's"},
        {"i64": 2, "t64": dt.datetime(2025, 12, 31, tzinfo=UTC), "s": "b"},
    ]
    expression = "(i64 % 8, toYYYYMM(t64), toStartOfMonth(t64), s)"
    prepare(engine, expression)
    rows = build(expression, drawn)
    engine.insert("t.p", rows)
    shown = {r["partition"] for r in engine.rows("SELECT partition FROM system.parts WHERE table = 'p' AND active")}
    groups = partition_groups(target(expression), rows)
    assert groups is not None
    labels = {label.replace("2026-02-01", "'2026-02-01'").replace("2025-12-01", "'2025-12-01'") for label, _ in groups}
    assert labels == shown


def test_a_table_without_partitions_is_one_group() -> None:
    groups = partition_groups(target(""), build("i64", [{"i64": 1}, {"i64": 2}]))
    assert groups is not None
    assert [(label, index.tolist()) for label, index in groups] == [("all", [0, 1])]


def test_no_rows_touch_no_partition() -> None:
    assert partition_groups(target("i64 % 8"), build("i64", [])) == []


def test_a_column_that_the_rows_lack_is_left_to_the_server() -> None:
    assert partition_groups(target("i64 % 8"), build("u8", [{"u8": 1}])) is None


def test_null_in_a_column_without_null_is_left_to_the_server() -> None:
    rows = pa.table({"i64": pa.array([1, None], pa.int64())})
    assert partition_groups(target("i64 % 8"), rows) is None


def test_a_million_rows_stand_with_those_of_their_month_and_remainder() -> None:
    number = np.arange(1_000_000)
    moment = number * 5_000_000 + 1_700_000_000_000_000
    rows = pa.table({"i64": pa.array(number), "t64": pa.array(moment, pa.timestamp("us", "UTC"))})
    groups = partition_groups(target("(i64 % 8, toYYYYMM(t64))"), rows)
    assert groups is not None
    own = moment.astype("datetime64[us]").astype("datetime64[M]").astype(int) * 8 + number % 8
    held = [np.asarray(index) for _, index in groups]
    assert [len(set(own[index])) for index in held] == [1] * len(set(own))
    np.testing.assert_array_equal(np.sort(np.concatenate(held)), number)


def test_labels_of_different_partitions_differ_whatever_bytes_they_hold() -> None:
    """They are part of the inserts' tokens: of two blocks with one token the server keeps one."""
    texts = [b"\xff", b"\\xff", b"\\\\xff", b"unhex('ff')", b"'\\xff'", b"\xfe", b"a\xff", b"a", b"", b"NULL", None]
    table = TargetTable(
        "d", "t", Engine(Family.REPLACING, "ReplacingMergeTree"), (Column("s", "Nullable(String)"),), partition_key="s"
    )
    groups = partition_groups(table, pa.table({"s": pa.array(texts, pa.binary())}))
    assert groups is not None
    assert len({label for label, _ in groups}) == len(groups) == len(texts)
