"""The numbered cases of times and numbers: stored by every engine, through every kind of change.

What a collapsing engine stored is cancelled by rows that repeat it to the byte: sums stay exact for every value."""

import base64
import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.model import TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.key import wanted_key
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.sides import Side
from tests.support.choose import some
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    Event,
    HandFed,
    Make,
    delete,
    each_collapsing,
    insert,
    row,
    update,
)
from tests.support.recorded import POLICY

pytestmark = pytest.mark.integration

TIME, DECIMAL = "io.debezium.time.", "org.apache.kafka.connect.data.Decimal"
Field = dict[str, Any]


def field(name: str, kind: str, semantic: str = "", **parameters: str) -> Field:
    made: Field = {"field": name, "type": kind, "optional": True}
    return made | ({"name": semantic} if semantic else {}) | ({"parameters": parameters} if parameters else {})


def number(unscaled: int) -> str:
    """Connect's Decimal."""
    size = unscaled.bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def enveloped(fields: list[Field], event: Event) -> Event:
    """The event with its schema, as JsonConverter writes it."""
    image = {"type": "struct", "optional": True, "fields": [field("id", "int64"), *fields]}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    schema["fields"] += [{"type": "string", "field": "op"}, {"type": "int64", "optional": True, "field": "ts_ms"}]  # type: ignore[operator]
    id_ = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}
    return Event({"schema": id_, "payload": event.key}, {"schema": schema, "payload": event.value}, event.headers)


HOUR = 3_600_000_000


@dataclass(frozen=True)
class Values:
    """What the source sends in a field, and what a column of this type shows of it."""

    column: str
    field: Field
    sent: list[Any]
    shown: list[str]

    @property
    def name(self) -> str:
        return f"{self.column} of {self.field.get('name', self.field['type']).rpartition('.')[2]}"


def bits(*values: bytes) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]


TIMES = [
    Values(
        "Time64(6)",
        field("t", "int64", TIME + "MicroTime"),
        [838 * HOUR + 1, -838 * HOUR, 0],
        ["838:00:00.000001", "-838:00:00.000000", "00:00:00.000000"],
    ),
    Values(
        "Time",
        field("t", "int32", TIME + "Time"),
        [-90_000_000, 86_400_000, 1000],
        ["-25:00:00", "24:00:00", "00:00:01"],
    ),
    Values(
        "Int64",
        field("t", "int64", TIME + "MicroTime"),
        [-838 * HOUR, 25 * HOUR, -1],
        ["-3016800000000", "90000000000", "-1"],
    ),
    Values(
        "DateTime64(9, 'UTC')",
        field("t", "int64", TIME + "NanoTimestamp"),
        [-1, 2**62, 1],
        ["1969-12-31 23:59:59.999999999", "2116-02-20 23:53:38.427387904", "1970-01-01 00:00:00.000000001"],
    ),
    Values(
        "DateTime64(6, 'Europe/Berlin')",
        field("t", "int64", TIME + "MicroTimestamp"),
        [1_698_541_200_000_000, 1_698_537_600_000_000, 0],
        ["2023-10-29 02:00:00.000000", "2023-10-29 02:00:00.000000", "1970-01-01 01:00:00.000000"],
    ),
    Values(
        "Date32",
        field("t", "int32", TIME + "Date"),
        [-719528, 2932896, 0],
        ["0000-01-01", "9999-12-31", "1970-01-01"],
    ),
    Values(
        "DateTime64(6, 'UTC')",
        field("t", "string", TIME + "ZonedTimestamp"),
        ["2024-02-29T12:34:56.7+02:00", "0001-01-01T00:00:00Z", None],
        ["2024-02-29 10:34:56.700000", "0001-01-01 00:00:00.000000", "null"],
    ),
]
NUMBERS = [
    Values("UInt64", field("t", "int64"), [-1, 2**63 - 1, 0], ["18446744073709551615", "9223372036854775807", "0"]),
    Values(
        "Decimal(65, 30)",
        field("t", "bytes", DECIMAL, scale="30"),
        [number(10**65 - 1), number(1 - 10**65), number(1)],
        ["9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"],
    ),
    Values(
        "Decimal(76, 40)",
        field("t", "bytes", DECIMAL, scale="40"),
        [number(1 - 10**76), number(0), number(5)],
        ["-" + "9" * 36 + "." + "9" * 40, "0", "0." + "0" * 39 + "5"],
    ),
    Values("Float64", field("t", "double"), ["NaN", -0.0, math.nextafter(1, 2)], ["nan", "-0", "1.0000000000000002"]),
    Values("Float32", field("t", "float"), ["-Infinity", 0.0, -0.0], ["-inf", "0", "-0"]),
    Values(
        "UInt16",
        field("t", "bytes", "io.debezium.data.Bits", length="12"),
        bits(b"\x01\x08", b"\x05", b""),
        ["2049", "5", "0"],
    ),
]


def through_every_change(make: Make, engine: str, tested: Values) -> None:
    """Each value stored, replaced by the next, by an equal one, and deleted; in several chunks."""
    sent, want = tested.sent, tested.shown
    fed = make(engine, more=f"t Nullable({tested.column})")
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fields = [field("v", "string"), tested.field]

    def feed(*events: Event) -> None:
        fed.feed([enveloped(fields, event) for event in events])

    def current() -> list[tuple[Any, ...]]:
        return fed.query("SELECT id, ifNull(toString(t), 'null') FROM {t}_current ORDER BY id")

    feed(*(insert(i, "a", 100 + i, t=value) for i, value in enumerate(sent)))
    assert current() == list(enumerate(want))
    turned = sent[1:] + sent[:1]
    feed(*(update(row(i, "a"), row(i, "b", t=value), 200 + i) for i, value in enumerate(turned)))
    assert current() == list(enumerate(want[1:] + want[:1]))
    feed(*(update(row(i, "b"), row(i, "c", t=value), 300 + i) for i, value in enumerate(turned)))
    feed(delete(row(0, "c"), 400))
    assert current() == list(enumerate(want[1:] + want[:1]))[1:]
    if engine in COLLAPSING:
        assert_repeated_to_the_byte(fed)
    fed.client.command(f"SYSTEM START MERGES {fed.name}")
    fed.merge()
    assert current() == list(enumerate(want[1:] + want[:1]))[1:]
    if engine in COLLAPSING:
        assert fed.query("SELECT count() FROM {t} FINAL") == [(len(sent) - 1,)]


def assert_repeated_to_the_byte(fed: HandFed) -> None:
    """Every −1 row is a stored +1 row in all its bytes, and its version too."""
    image = "id, v, isNull(t), hex(reinterpretAsString(assumeNotNull(t))), toString(_version)"
    plus = fed.query(f"SELECT {image} FROM {{t}} WHERE _sign = 1")
    minus = fed.query(f"SELECT {image} FROM {{t}} WHERE _sign = -1")
    assert len(minus) == 2 * 3 + 1  # each of the three was replaced twice, and one of them deleted
    assert len(minus) == len(set(minus))
    assert set(minus) <= set(plus)


def cancelled(values: list[Values]) -> list[Any]:
    """Each kind of value where rows cancel each other, two of them in the other tables; the rest in the long run."""
    names = [t.name for t in values]
    chosen = [(name, COLLAPSING[n % 2]) for n, name in enumerate(names)]
    return some(product(names, ENGINES), [*chosen, (names[0], "replacing"), (names[1], "sign")])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "engine"), cancelled(TIMES))
def test_case_12_times_are_stored_and_cancelled_exactly(make: Make, engine: str, name: str) -> None:
    """Beyond 24 h, negative, nine digits, before 1970, column zones, an hour that a zone's clock shows twice."""
    through_every_change(make, engine, next(t for t in TIMES if t.name == name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "engine"), cancelled(NUMBERS))
def test_case_13_numbers_are_stored_and_cancelled_exactly(make: Make, engine: str, name: str) -> None:
    """64 bits unsigned, 65 and 76 digits, NaN, minus zero, infinity, BIT."""
    through_every_change(make, engine, next(t for t in NUMBERS if t.name == name))


@each_collapsing
def test_case_12_a_clamped_value_is_cancelled_as_it_was_stored(make: Make, engine: str) -> None:
    """What the source has lies outside the column's range: the −1 row repeats what is stored, not what was sent."""
    fed = make(engine, more="t Nullable(DateTime('UTC'))", policy=policy_of(out_of_range="clamp", on_bad_record="fail"))
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fields = [field("v", "string"), field("t", "int64", TIME + "Timestamp")]
    sent = [253_402_300_799_000, -62_135_596_800_000, 1000]
    applied = fed.feed([enveloped(fields, insert(i, "a", 100 + i, t=t)) for i, t in enumerate(sent)])
    assert sum(one.counts.out_of_range for one in applied) == 2
    for pos, letter in ((200, "b"), (300, "c")):
        changes = [update(row(i, "?"), row(i, letter, t=t), pos + i) for i, t in enumerate(sent)]
        fed.feed([enveloped(fields, event) for event in changes])
    fed.feed([enveloped(fields, delete(row(0, "c"), 400))])
    assert_repeated_to_the_byte(fed)
    assert fed.query("SELECT id, toString(t) FROM {t}_current ORDER BY id") == [
        (1, "1970-01-01 00:00:00"),
        (2, "1970-01-01 00:00:01"),
    ]


@pytest.fixture
def table(client: Client, database: str) -> TargetTable:
    client.command(
        f"CREATE TABLE {database}.t (k FixedString(3), v Nullable(String), a Array(String), _version UInt64, "
        "_is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY k"
    )
    return detect(client, database, "t", POLICY)


def test_bytes_are_shown_as_their_digits_and_text_as_text(client: Client, database: str, table: TargetTable) -> None:
    columns = tuple(column for column in table.columns if column.name in "kva")
    rows = "(unhex('ff0022'), unhex('fe22'), [unhex('ff'), 'x']), ('abc', 'é\"', ['y']), (unhex('000000'), NULL, ['z'])"
    with shadow_tables(client, shadow_of(table, database, ("k",), columns)) as shadow:
        client.command(f"INSERT INTO {shadow.table.qualified} (k, v, a) VALUES {rows}")
        client.command(f"INSERT INTO {table.qualified} (k, v, a, _version) VALUES ('abc', unhex('00ff'), ['y'], 1)")
        found = Differences(
            client, shadow.differences, Side(shadow.table, ("k",), columns), Side(table, ("k",), columns)
        )
        found.find(0, found.totals())
        shown = [(one.key, one.columns) for one in found.examples(0, 10)]
        for key, _ in shown:
            mine = wanted_key(client, shadow.table, key).condition
            assert client.rows(f"SELECT count() AS n FROM {shadow.table.qualified} WHERE {mine}") == [{"n": 1}]
    assert sorted(shown, key=str) == [
        ({"k": "\0\0\0"}, {"v": (None, None), "a": (["z"], None)}),
        ({"k": "abc"}, {"v": ('é"', {"hex": "00ff"})}),
        ({"k": {"hex": "ff0022"}}, {"v": ({"hex": "fe22"}, None), "a": (["\ufffd", "x"], None)}),
    ]


def test_a_key_of_bytes_is_named_by_its_digits(client: Client, table: TargetTable) -> None:
    client.command(f"INSERT INTO {table.qualified} (k, v) VALUES (unhex('ff0022'), 'it'), ('abc', 'other')")
    wanted = wanted_key(client, table, {"k": {"hex": "FF0022"}})
    assert client.rows(f"SELECT v FROM {table.qualified} WHERE {wanted.condition}") == [{"v": "it"}]
    found = client.arrow(f"SELECT k FROM {table.qualified} ORDER BY k")
    assert list(wanted.within(found)) == [False, True]
    for value in ({"hex": "xy"}, {"hex": "ff", "more": 1}, {"oct": "7"}):
        with pytest.raises(StreamFailed, match="is not a plain value"):
            wanted_key(client, table, {"k": value})
