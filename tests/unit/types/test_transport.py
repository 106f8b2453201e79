"""How values travel that no server reads alike as anything but text."""

from typing import Any

import pyarrow as pa
import pytest

from ch_sink.types.arrow import arrow_type, carried, sent_type, without_unreadable_nulls
from ch_sink.types.chtype import ChType
from ch_sink.types.temporal import from_ticks

UUID, NONE = "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("UInt128", "x"),
        ("Array(DateTime64(3, 'UTC'))", "x"),
        ("UUID", "CAST(x, 'String')"),
        ("Nullable(Time64(3))", "CAST(x, 'Nullable(String)')"),
        ("LowCardinality(Nullable(UUID))", "CAST(x, 'LowCardinality(Nullable(String))')"),
        ("SimpleAggregateFunction(anyLast, UUID)", "CAST(x, 'String')"),
        ("SimpleAggregateFunction(anyLast, Int8)", "x"),
        ("Map(UUID, Array(Time))", "CAST(x, 'Map(String, Array(String))')"),
        ("Nested(a UUID, b Int8)", "CAST(x, 'Array(Tuple(`a` String, `b` Int8))')"),
        ("Array(JSON(max_dynamic_paths=8))", "CAST(x, 'Array(String)')"),
        (
            "Tuple(`UUID` UUID, e Enum8('a' = 1), d Decimal(20, 2), t DateTime('UTC'))",
            r"CAST(x, 'Tuple(`UUID` String, `e` Enum8(\'a\' = 1), `d` Decimal(20, 2), `t` DateTime(\'UTC\'))')",
        ),
    ],
)
def test_what_travels_as_text_is_read_as_text(kind: str, read: str) -> None:
    assert carried("x", kind) == read


@pytest.mark.parametrize(
    ("kind", "values", "sent"),
    [
        ("UUID", [UUID, None], [UUID, None]),
        ("JSON", ['{"a":1}', None], ['{"a":1}', "{}"]),
        ("Nullable(JSON)", [None], [None]),
        ("Array(UUID)", [[UUID, None], None, []], [[UUID, NONE], None, []]),
        ("Array(Nullable(UUID))", [[None]], [[None]]),
        ("Array(Array(Time))", [[[None, "01:00:00"]], [None]], [[["00:00:00", "01:00:00"]], [None]]),
        ("Map(String, UUID)", [[(b"a", None)], None], [[(b"a", NONE)], None]),
        ("Tuple(a UUID, b Nullable(UUID))", [{"a": None, "b": None}, None], [{"a": NONE, "b": None}] * 2),
        ("Nullable(Tuple(a UUID))", [{"a": None}, None], [{"a": NONE}, None]),
        ("Nested(a UUID)", [[{"a": None}]], [[{"a": NONE}]]),
        ("Array(String)", [[None]], [[None]]),
    ],
)
@pytest.mark.parametrize("skipped", [0, 2])
def test_nulls_that_no_server_reads_become_their_types_default(
    kind: str, values: list[Any], sent: list[Any], skipped: int
) -> None:
    array = pa.chunked_array([pa.array([*values[:1] * skipped, *values], arrow_type(kind))[skipped:]])
    assert without_unreadable_nulls(array, kind).to_pylist() == sent


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("LowCardinality(Nullable(String))", "Nullable(String)"),
        ("SimpleAggregateFunction(anyLast, LowCardinality(String))", "String"),
        ("Array(LowCardinality(String))", "Array(LowCardinality(String))"),
    ],
)
def test_what_changes_no_value_is_not_sent(kind: str, sent: str) -> None:
    assert sent_type(kind) == sent


@pytest.mark.parametrize(
    ("precision", "digits", "ticks", "text"),
    [
        (6, 6, 838 * 3_600_000_000 + 1, "838:00:00.000001"),
        (6, 6, -500_000, "-00:00:00.500000"),
        (3, 6, -1, "-00:00:00.001"),
        (3, 6, 1_999, "00:00:00.001"),
        (9, 3, 45_296_789, "12:34:56.789000000"),
        (0, 3, 59_999, "00:00:59"),
        (0, 3, None, None),
    ],
)
def test_ticks_are_the_servers_text_of_the_columns_precision(
    precision: int, digits: int, ticks: int | None, text: str | None
) -> None:
    target = ChType("Time64", (precision,)) if precision else ChType("Time")
    assert from_ticks(target, digits, (0, 0), "fail").convert([ticks]).array.to_pylist() == [text]
