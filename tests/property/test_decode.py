"""A record means the same alone and among others, however broken its neighbours are."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import TableError
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import TopicProfile, policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import outcome, replacing, table_of
from tests.support.fixtures import partitions, topics

TABLE = replacing(
    (
        Column("id", "Int64"),
        Column("small", "Nullable(Int8)"),
        Column("name", "Nullable(String)"),
        Column(
            "price",
            "Nullable(Decimal(9, 2))",
            comment='debezium: bytes org.apache.kafka.connect.data.Decimal {"parameters":{"scale":"2"}}',
        ),
        Column("day", "Nullable(Date32)"),
        Column("at", "Nullable(DateTime64(6, 'UTC'))", comment="debezium: string io.debezium.time.ZonedTimestamp"),
        Column("ratio", "Nullable(Float64)"),
        Column("u", "Nullable(UInt64)"),
        Column("tags", "Array(Nullable(String))"),
        Column("uuid", "Nullable(UUID)"),
        Column("added", "DateTime", default_kind="DEFAULT", default_expression="now()"),
    ),
    ("id",),
)
PLACEHOLDER = "__debezium_unavailable_value"

texts = st.sampled_from(["", "a", "é漢🦀", PLACEHOLDER, "null", "x" * 50]) | st.text(max_size=8)
numbers = st.sampled_from([0, 1, -1, 127, 128, -129, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]) | st.integers()
moments = st.sampled_from(
    ["2024-02-29T12:34:56Z", "2024-02-29T12:34:56.123456789Z", "2024-02-29 12:34:56", "2024-02-29T12Z",
     "infinity",
     "+294276-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "2024-02-30T00:00:00Z", "nonsense", "2024-02-29T24:00:00Z",
     "2024-02-29T12:34:56+02:00", "2024-02-29T12:34:56+0230", "1969-12-31T23:59:59.999999Z", "2024-02-29", "2024-2-9"]
)  # fmt: skip
wrong: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    texts,
    st.lists(texts, max_size=2),
    st.just({"scale": 1, "value": "AA=="}),
)
fields: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-5, 5),
    "small": numbers | st.integers(-128, 127),
    "name": texts,
    "price": st.sampled_from(["AA==", "/w==", "O5rJ/w==", "f////w==", "not base64!", "1.5"]),
    "day": st.sampled_from([0, -719528, -719529, 2932896, 2932897, -2147472692]),
    "at": moments,
    "ratio": st.sampled_from([0, 1.5, -1e308, "NaN", "Infinity", "inf", "1"]),
    "u": numbers,
    "tags": st.lists(st.none() | texts, max_size=3),
    "uuid": st.sampled_from(
        ["00112233-4455-6677-8899-aabbccddeeff", "00112233445566778899aabbccddeeff", "x", "0" * 36]
    ),
}
MYSQL = {"connector": "mysql", "name": "s", "ts_ms": 5, "snapshot": "false", "file": "b.000003", "pos": 4, "row": 0}
POSTGRES = {"connector": "postgresql", "name": "p", "ts_ms": 6, "snapshot": None, "lsn": 7, "sequence": '["5","7"]'}


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(fields)
    for name in draw(st.sets(st.sampled_from(list(fields)), max_size=4)):
        row[name] = draw(fields[name] if draw(st.integers(0, 5)) else wrong)
    row["id"] = draw(fields["id"])
    if draw(st.integers(0, 9)) == 0:
        del row[draw(st.sampled_from(list(fields)))]
    if draw(st.integers(0, 9)) == 0:
        row[draw(st.sampled_from(["extra", "added", "_version", "Name"]))] = draw(wrong)
    return row


@st.composite
def sources(draw: st.DrawFn) -> Any:
    block = dict(draw(st.sampled_from([MYSQL] * 6 + [POSTGRES])))
    if draw(st.integers(0, 7)) == 0:
        name = draw(
            st.sampled_from(["pos", "file", "row", "ts_ms", "snapshot", "connector", "name", "lsn", "sequence"])
        )
        block[name] = draw(
            st.sampled_from(
                [None, -1, 0, 2**40, 2**64, "", "x", "b.16777216", "b.007", '[null,"1"]', "[", True, 1.5, "first"]
            )
        )
    return draw(st.sampled_from([block] * 12 + [None]))


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return None
    if kind == 1:
        return draw(
            st.sampled_from(
                [
                    b"",
                    b"null",
                    b"{",
                    b"[]",
                    b'"x"',
                    b"7",
                    b'{"ts_ms":1}',
                    b'{"status":"BEGIN","id":"1"}',
                    b'{"ddl":""}',
                    b"\x00\x00\x00\x00\x05abc",
                    b'{"schema":null,"payload":null}',
                    b'{"schema":{},"payload":{}}',
                    b"\xff\xfe",
                    b'{"op":"m"}',
                    b'{"op":"t","source":null}',
                    b'{"op":"x"}',
                    b'{"op":7}',
                    b'{"a":' * 3000,
                    b' {"op" : "d"} ',
                ]
            )
        )
    op = draw(st.sampled_from(["c", "u", "r", "d", "t", "z", "é"] + ["c", "u"] * 6))
    event = {
        "before": draw(st.none() | rows()) if op in "ud" else None,
        "after": draw(rows()) if op not in "dt" else draw(st.sampled_from([None, None, {}])),
        "source": draw(sources()),
        "op": op,
    }
    text = json.dumps(event, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0 and text:
        place = draw(st.integers(0, len(text) - 1))
        text = text[:place] + draw(st.binary(max_size=2)) + text[place + draw(st.integers(0, 3)) :]
    return text


keys = st.sampled_from(
    [b'{"id":1}', b'{"id":2}', b'{"id":3}', None, b'{"id":"x"}', b'{"id":1,"b":2}', b"\xff", b"5"] + [b'{"id":4}'] * 12
)


def records_of(values: list[bytes | None], keys: list[bytes | None]) -> Records:
    n = len(values)
    return Records("t", 0, np.arange(n, dtype=np.int64) * 3 + 10, np.zeros(n, dtype=np.int64), keys, values)


class KnownKey(Decoder):
    """Knows the key's columns, as behind earlier records."""

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        known = self.learn(records_of([b'{"op":"d"}'], [b'{"id":1}']))
        return super().decode(records, self.learn(records, known), waited=waited)


def decoder(table: TargetTable, **choices: Any) -> Decoder:
    return KnownKey(table, policy_of(**choices), want_before=True)


def created(**image: Any) -> bytes:
    return json.dumps({"before": None, "after": image, "source": MYSQL, "op": "c"}).encode()


def fault_beside_the_price(value: bytes, key: bytes | None, out_of_range: Any) -> tuple[str, str | None] | None:
    """What is wrong with a record once its price is null."""
    try:
        event = json.loads(value)
    except ValueError:
        return "decode", None
    for image in ("before", "after"):
        if isinstance(event[image], dict) and "price" in event[image]:
            event[image]["price"] = None
    mended = records_of([json.dumps(event).encode()], [key])
    return outcome(decoder(TABLE, out_of_range=out_of_range).decode(mended))[1].get(0)


_EMPTY = dict.fromkeys(fields) | {"id": 0}
_SMALL_OUT_OF_RANGE = created(**_EMPTY | {"small": 128})
_WITHOUT_ID = created(**{name: value for name, value in _EMPTY.items() if name != "id"})
_LIST = created(**_EMPTY | {"price": []})
_NUMBER = created(**_EMPTY | {"price": 0})
_NUMBER_AND_MORE = created(**_EMPTY | {"price": 0, "extra": None})
_TWO_FAULTS = created(**_EMPTY | {"price": "not base64!"}).replace(b'"op": "c"', b'"op": "z"')


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@example([(_SMALL_OUT_OF_RANGE, b'{"id":1}'), (_WITHOUT_ID, b'{"id":1}')], "fail")
@example([(_WITHOUT_ID, b'{"id":1}'), (_NUMBER, b'{"id":1}')], "fail")
@example([(_NUMBER, b'{"id":1}'), (_LIST, b'{"id":1}')], "fail")
@example([(_NUMBER_AND_MORE, b'{"id":1}'), (_TWO_FAULTS, b'{"id":1}')], "fail")
@given(
    st.lists(st.tuples(values(), keys), min_size=1, max_size=8),
    st.sampled_from(["fail", "clamp", "null"]),
)
def test_chunk_equals_each_record_alone(drawn: list[tuple[bytes | None, bytes | None]], out_of_range: Any) -> None:
    records = records_of([v for v, _ in drawn], [k for _, k in drawn])
    whole = decoder(TABLE, out_of_range=out_of_range).decode(records)
    events, bad = outcome(whole)
    skipped, clamped = 0, 0
    unknown: set[str] = set()
    for i in range(len(records)):
        alone = decoder(TABLE, out_of_range=out_of_range).decode(records.slice(i, i + 1))
        own, own_bad = outcome(alone)
        offset = int(records.offsets[i])
        assert own.get(offset) == events.get(offset)
        kind, column = own_bad.get(0, (None, None))
        other_kind, other_column = bad.get(i, (None, None))
        assert kind == other_kind
        if column != other_column:
            # Of a record with two faults either may be told: its neighbours have taught how decimals are written.
            assert "price" in (column, other_column)
            value = records.values[i]
            assert value is not None
            assert fault_beside_the_price(value, records.keys[i], out_of_range) == (
                kind,
                other_column if column == "price" else column,
            )
        skipped += alone.skipped_counts.total()
        clamped += alone.clamped.total()
        unknown |= {c.name for c in alone.unknown}
        for column in alone.unknown:
            assert next(c for c in whole.unknown if c.name == column.name).first_offset <= offset
    assert whole.skipped_counts.total() == skipped
    assert whole.clamped.total() == clamped
    assert {c.name for c in whole.unknown} == unknown
    assert len(events) + len(bad) + skipped == len(records)
    assert whole.offset.tolist() == sorted(whole.offset.tolist())


RECORDED = [
    records
    for stream in ("mariadb-json_schema-wide", "postgres-json_schema-wide", "postgres-json_plain")
    for topic in topics(stream)
    if topic.endswith((".all_types", ".toast_t", ".nn"))
    for records in partitions(stream, topic).values()
    if len(records) > 1
]


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(range(len(RECORDED))), st.data())
def test_corrupt_recorded_records_leave_their_neighbours_alone(which: int, data: st.DataObject) -> None:
    records = RECORDED[which]
    schema = sample_schema(records)
    assert schema is not None
    table = table_of(schema)
    sound = Decoder(table, policy_of(), want_before=True).decode(records)
    before, _ = outcome(sound)
    victim = data.draw(st.sampled_from([i for i, v in enumerate(records.values) if v]))
    value = records.values[victim]
    assert value is not None
    place = data.draw(st.integers(0, len(value) - 1))
    broken = (
        value[:place] + data.draw(st.binary(min_size=1, max_size=2)) + value[place + data.draw(st.integers(0, 40)) :]
    )
    values = list(records.values)
    values[victim] = broken
    changed = Records(records.topic, records.partition, records.offsets, records.timestamps, records.keys, values)
    try:
        after, bad = outcome(Decoder(table, policy_of(), want_before=True).decode(changed))
    except TableError:
        # It declares another type now, as after a change of the source's schema: that stops the stream.
        assert place < value.index(b'"payload":')
        return
    assert set(bad) <= {victim}
    own = int(records.offsets[victim])
    assert {o: e for o, e in after.items() if o != own} == {o: e for o, e in before.items() if o != own}
