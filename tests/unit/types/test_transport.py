"""How values travel that no server reads alike as anything but text."""

import random
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.errors import TableError
from ch_sink.types.arrow import arrow_type, carried, sent_type, without_unreadable_nulls
from ch_sink.types.build import converter
from ch_sink.types.chtype import ChType
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import Converter, Encoding, Reaction, takes_arrow, takes_whole
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
        ("JSON", ['{"a":1}', None], ['{"a":1}', None]),
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


_TIME = "io.debezium.time."
_SOURCES = [
    *(("int8", ""), ("int16", ""), ("int32", ""), ("int64", ""), ("boolean", ""), ("float64", ""), ("string", "")),
    *(("int32", _TIME + "Date"), ("int64", _TIME + "Timestamp"), ("int64", _TIME + "MicroTimestamp")),
    *(("int64", _TIME + "NanoTimestamp"), ("int32", _TIME + "Time"), ("string", _TIME + "ZonedTimestamp")),
]
_COLUMNS = (
    "Int8 UInt8 Int16 UInt16 Int32 UInt32 Int64 UInt64 Int128 Float32 Float64 Decimal(10,2) Decimal(9,0) Decimal(40,3) "
    "Date Date32 DateTime DateTime64(3) DateTime64(6) DateTime64(9) DateTime64(0) Time Time64(3) Bool String UUID"
).split()
_TEXTS = (None, "1.5", "", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123456Z", "-3", "7", "x")


def drawn(draw: random.Random, kind: str, count: int) -> tuple[list[Any], pa.Array]:
    """Values, and the array of them; what lies in the place of nulls is anything."""
    if kind.startswith("int"):
        most = draw.choice((100, 127, 30_000, 70_000, 1 << 31, 1 << 40, (1 << 63) - 1))
        pairs = [(draw.randrange(-most, most + 1), draw.randrange(most + 1)) for _ in range(count)]
        values = [draw.choice((None, 0, *pair)) for pair in pairs]
        filler = draw.choice((0, -1, 5, (1 << 63) - 1, -(1 << 63)))
        raw = np.array([filler if value is None else value for value in values], dtype=np.int64)
        bits = np.packbits([value is not None for value in values], bitorder="little").tobytes()
        valid = pa.py_buffer(bits) if None in values else None
        return values, pa.Array.from_buffers(pa.int64(), count, [valid, pa.py_buffer(raw)])
    if kind == "boolean":
        flags = [draw.choice((None, True, False)) for _ in range(count)]
        return list(flags), pa.array(flags, pa.bool_())
    if kind == "float64":
        numbers = [draw.choice((None, 1.5, -0.0, 3.4e38, 1e39, float("nan"), 7.0)) for _ in range(count)]
        return list(numbers), pa.array(numbers, pa.float64())
    texts = [draw.choice(_TEXTS if draw.random() < 0.2 else _TEXTS[3:4]) for _ in range(count)]
    return list(texts), pa.array(texts, pa.string())


def takes(made: Converter, kind: str, encoding: Encoding) -> bool:
    if encoding == "avro":
        return takes_arrow(made)
    wholes: Any = {"boolean": "flags", "float64": "floats", "string": "texts"}
    return takes_whole(made, wholes.get(kind, "integers"))


def result(made: Converter, values: Any) -> object:
    """What becomes of the values, or the kind of the error."""
    try:
        done = made.convert(values)
        done.array.validate(full=True)
    except Exception as error:  # noqa: BLE001 (any must be the same)
        return type(error).__name__
    array = done.array
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    unavailable = None if done.unavailable is None else done.unavailable.tolist()
    return repr(array.to_pylist()), str(done.array.type), done.array.null_count, done.clamped, unavailable


@pytest.mark.sampled(2)
@pytest.mark.parametrize("encoding", ["avro", "json"])
@pytest.mark.parametrize("reaction", ["fail", "clamp", "null"])
def test_an_array_gives_what_its_values_give(encoding: Encoding, reaction: Reaction) -> None:
    draw, tried, wrong = random.Random(f"{encoding} {reaction}"), 0, []
    for (kind, name), column in product(_SOURCES, _COLUMNS):
        policy = ValuePolicy(out_of_range=reaction)
        try:
            made = converter(SourceType(kind, name or None), Column("x", column), encoding=encoding, policy=policy)
        except TableError:
            continue
        if not takes(made, kind, encoding):
            continue
        for _ in range(6):
            offset = draw.choice((0, 0, 1, 3, 8, 9))
            values, array = drawn(draw, kind, draw.randrange(1, 12) + offset)
            own, whole = result(made, values[offset:]), result(made, array.slice(offset))
            tried += 1
            if own != whole:
                wrong.append((kind, name, column, values[offset:], own, whole))
    assert tried > 300
    assert wrong == []
