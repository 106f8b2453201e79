"""The compiled scanner reads what it reads as it is read without it."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.decode.json import scanned
from ch_sink.decode.json.scanned import Programs
from ch_sink.decode.native.library import Keep, Members, library
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.choose import each_value
from tests.support.decoding import outcome, replacing, table_of
from tests.support.fixtures import partitions, topics
from tests.support.scan_records import changed

pytestmark = pytest.mark.skipif(library() is None, reason="the scanner is not compiled")

NEVER = 1 << 60
STREAMS = ("mariadb-json_plain", "postgres-json_plain", "mariadb-json_schema", "postgres-json_schema-wide")


def recorded(stream: str) -> Iterator[tuple[TargetTable, Records]]:
    for topic in topics(stream):
        for records in partitions(stream, topic).values():
            schema = sample_schema(records)
            live = [i for i, value in enumerate(records.values) if value]
            if schema is not None and len(live) > 1:
                yield table_of(schema), of([records.keys[i] for i in live], [records.values[i] for i in live])


def of(keys: list[bytes | None], values: list[bytes | None]) -> Records:
    offsets = np.arange(len(values), dtype=np.int64)
    return Records("t", 0, offsets, offsets, keys, values)


def told(batch: ChangeBatch) -> Any:
    more = (batch.skipped, batch.bad, batch.unknown, batch.clamped, batch.connector, batch.absent_before, batch.updates)
    return repr((outcome(batch), batch.after.schema, batch.half.tolist(), more))


def decoded(decoder: Decoder, records: Records, profile: Any, monkeypatch: pytest.MonkeyPatch, fewest: int) -> Any:
    monkeypatch.setattr(scanned, "FEWEST", fewest)
    try:
        return told(decoder.decode(records, profile))
    except (DecodeError, TableError) as error:
        return repr(error)


@pytest.mark.long
@pytest.mark.parametrize(("stream", "reaction"), each_value(STREAMS, ["fail", "clamp", "null"]))
def test_mutated_records_mean_the_same_with_and_without_it(
    stream: str, reaction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rnd = random.Random(f"{stream} {reaction}")
    read = 0
    whole = scanned.Scanner.read

    def counted(self: scanned.Scanner, payloads: list[bytes], places: Any) -> Any:
        nonlocal read
        found = whole(self, payloads, places)
        read += found is not None
        return found

    monkeypatch.setattr(scanned.Scanner, "read", counted)
    turns = 0
    for table, records in recorded(stream):
        monkeypatch.setattr(scanned, "FEWEST", NEVER)
        one, other = (Decoder(table, policy_of(out_of_range=reaction), want_before=True) for _ in range(2))
        profile = one.learn(records)
        for _ in range(12):
            places = sorted(rnd.sample(range(len(records)), min(rnd.randrange(1, 5), len(records))))
            keys, values = [records.keys[i] for i in places], [records.values[i] for i in places]
            which = rnd.randrange(len(places))
            chosen = keys if keys[which] and rnd.random() < 0.2 else values
            chosen[which] = changed(chosen[which] or b"x", rnd)
            given = of(keys, values)
            expected = decoded(other, given, profile, monkeypatch, NEVER)
            assert decoded(one, given, profile, monkeypatch, 1) == expected
            turns += 1
    assert read > turns // 4


def event(number: int, **more: object) -> bytes:
    source = {
        "connector": "mysql",
        "name": "s",
        "ts_ms": 5,
        "snapshot": "false",
        "file": "b.3",
        "pos": number,
        "row": 0,
    }
    image = {"id": number, "name": f"n{number}"}
    whole = {"before": None, "after": image, "source": source, "op": "c", "ts_ms": 6} | more
    return json.dumps(whole, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "other",
    [
        event(1).replace(b'"op":"c","ts_ms":6', b'"ts_ms":6,"op":"c"'),
        event(1).replace(b'"op":"c"', b'"op":"c","op":"c"'),
        event(1).replace(b'"op":"c"', b'"op": "c"'),
        event(1).replace(b'"ts_ms":6', b'"ts_ms":06'),
        event(1).replace(b'"ts_ms":6', b'"ts_ms":"\xff"'),
        event(1) + b" ",
        event(1) + b"}",
        event(1)[:-1],
        event(1, after=[]),
        event(1, after={"id": 1}),
        event(1, source=5),
        b"",
    ],
)
def test_a_record_that_does_not_follow_the_program_is_refused(other: bytes) -> None:
    native = library()
    assert native is not None
    image = Members({"id": Keep(), "name": Keep()}, others=None)
    programs = Programs(native, Members({"after": image, "source": Members({}), "op": Keep()}))
    sound = [event(i) for i in range(100)]
    assert programs.scan(sound) is not None
    assert programs.scan([*sound, other, *sound]) is None
    assert programs.scan([other, *sound]) is None


TABLE = replacing((Column("id", "Int64"), Column("name", "String")), ("id",))


@pytest.mark.parametrize(
    "other",
    [event(1, after=None), event(1, source=None), event(1, op="m"), event(1, op="cc"), event(1, op=5),
     event(1, before=[]), event(1, op="t", after=None), event(1, op="d"), event(1, before={"id": 1, "name": None})],
)  # fmt: skip
def test_a_record_that_follows_it_and_means_something_else_is_read_as_ever(
    other: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = of([b'{"id":1}'] * 3, [event(0), other, event(2)])
    one, two = (Decoder(TABLE, policy_of(), want_before=True) for _ in range(2))
    profile = one.learn(records)
    expected = decoded(two, records, profile, monkeypatch, NEVER)
    assert decoded(one, records, profile, monkeypatch, 1) == expected


def test_what_is_null_in_the_first_records_may_be_there_in_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes = [event(i, op="d", after=None) for i in range(20)]
    for last in (event(20), event(20, op="c", after=None)):
        records = of([b'{"id":%d}' % i for i in range(21)], [*deletes, last])
        one, two = (Decoder(TABLE, policy_of(), want_before=True) for _ in range(2))
        profile = one.learn(records)
        expected = decoded(two, records, profile, monkeypatch, NEVER)
        assert decoded(one, records, profile, monkeypatch, 1) == expected
