"""Keys of collections in which ``_id`` is a number here and a text there."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId

from ch_sink.decode import Decoder
from ch_sink.errors import TableError
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.avro import Topic
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.mongodb import event

AVRO_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}
JSON_KEY = {"type": "struct", "fields": [{"field": "id", "type": "string"}]}


def table(column: str = "String") -> Any:
    return replacing((Column("_id", column), Column("document", "String")), ("_id",))


def records(ids: list[Any], form: str = "plain") -> tuple[Records, Topic]:
    topic = Topic()
    events = [event("c", one, {"_id": one}) for one in ids]
    keys: list[bytes | None] = []
    for found in events:
        if form == "avro":
            keys.append(topic.write(AVRO_KEY, found.key))
        else:
            keys.append(
                json.dumps({"schema": JSON_KEY, "payload": found.key} if form == "schema" else found.key).encode()
            )
    values: list[bytes | None] = [json.dumps(found.value).encode() for found in events]
    return chunk_of(keys, values), topic


def decode(ids: list[Any], column: str = "String", form: str = "plain", **choices: Any) -> ChangeBatch:
    given, topic = records(ids, form)
    return Decoder(table(column), policy_of(**choices), registry=topic.registry).decode(given)


def stored(batch: ChangeBatch) -> list[Any]:
    assert batch.key.column("_id").equals(batch.after.column("_id"))
    return [row["_id"] for row in batch.key.to_pylist()]


@pytest.mark.parametrize("column", ["String", "LowCardinality(String)"])
@pytest.mark.parametrize("form", ["plain", "schema", "avro"])
@pytest.mark.parametrize("number", [1, 1.5, Int64(1), Decimal128("1.00"), float("nan")])
def test_a_number_and_its_text_are_never_one_row(number: Any, form: str, column: str) -> None:
    texts = ["a name"] * 70  # as many as the compiled scanner reads
    batch = decode([ObjectId(), *texts, number, "1", "007"], column, form)
    assert [bad.index for bad in batch.bad] == [71]
    assert f"_id is the number {1.5 if number == 1.5 else 'NaN' if number != number else 1}" in batch.bad[0].reason
    assert stored(batch)[-2:] == [b"1", b"007"]


HEX = "596e275826f08b2730779e1f"
DATE = datetime(2023, 11, 14, 22, 13, 20)


@pytest.mark.parametrize("many", [1, 70])
@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (HEX, f"the text '{HEX}', .* as an ObjectId"),
        ('{"a":1}', "as a document"),
        (True, "the value true,"),
        (DATE, r"the value {\"\$date\""),
        (Binary(b"1234567890123456", 4), r"the value {\"\$binary\""),
    ],
)
def test_keys_of_different_types_are_never_one_row(refused: Any, said: str, many: int) -> None:
    """An application wrote ids as ObjectIds, and another version of it their digits."""
    for others in ([ObjectId(HEX)], ["a name"], [ObjectId(HEX), "a name", {"a": 1}]):
        batch = decode([*others * many, refused])
        assert [bad.index for bad in batch.bad] == [len(others) * many]
        assert re.search(said, batch.bad[0].reason)
    alone = decode([refused] * many)
    assert len(alone.bad) == many


def test_plain_keys_of_one_type_are_taken() -> None:
    assert stored(decode([ObjectId(HEX)] * 70))[0] == HEX.encode()
    assert stored(decode(["a name", HEX.upper(), HEX + "0"] * 70))[:2] == [b"a name", HEX.upper().encode()]
    assert stored(decode([{"a": 1}] * 70))[0] == b'{"a":1}'
    uuids = decode([Binary(b"1234567890123456", 4)] * 70, "UUID")
    assert not uuids.bad


def test_numbers_alone_fill_a_column_of_their_own() -> None:
    assert stored(decode([1, 2.0, Int64(3)] * 30, "Int64"))[:3] == [1, 2, 3]
    typed = decode([1, 2.5, Decimal128("1.00")] * 30, document_keys="typed")
    assert stored(typed)[:3] == [b"1", b"2.5", b"1"]


def test_typed_keys_tell_them_apart() -> None:
    identity = ObjectId("596e275826f08b2730779e1f")
    batch = decode([1, "1", 1.0, identity, str(identity), True, "true", {"a": 1}, 2.5], document_keys="typed")
    assert not batch.bad
    texts = ["1", '"1"', "1", f'{{"$oid":"{identity}"}}', f'"{identity}"', "true", '"true"']
    assert stored(batch) == [text.encode() for text in [*texts, '{"a":{"$numberInt":"1"}}', "2.5"]]


UUIDS = [Binary(bytes([n]) * 16, 4) for n in (1, 2)]
IDENTITY = ObjectId(HEX)
IDS = [1, 2.0, Int64(3), Decimal128("4.0"), "1", True, DATE, IDENTITY, HEX, {"a": 1}, *UUIDS]
IDS += [Binary(b"1" * 16, 0), str(UUIDS[0].as_uuid()), "a name"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("many", [1, 70])
@pytest.mark.parametrize("form", ["plain", "schema"])
@pytest.mark.parametrize("keys", ["plain", "typed"])
@pytest.mark.parametrize(
    ("column", "taken", "values"),
    [
        ("Int64", IDS[:4], [1, 2, 3, 4]),
        ("UInt8", IDS[:4], [1, 2, 3, 4]),
        ("Nullable(Int128)", IDS[:4], None),
        ("UUID", UUIDS, None),
        ("FixedString(12)", [IDENTITY], [bytes.fromhex(HEX)]),
        ("FixedString(24)", [IDENTITY], [HEX.encode()]),
    ],
)
def test_a_key_column_takes_one_kind_of_keys(
    column: str, taken: list[Any], values: list[Any] | None, keys: str, form: str, many: int
) -> None:
    """5 and "5" are two documents."""
    for other in (one for one in IDS if not any(one is found for found in taken)):
        batch = decode([*taken * many, other], column, form, document_keys=keys)
        assert [bad.index for bad in batch.bad] == [len(taken) * many]
        assert re.search(r"_id is .* takes \w+ alone", batch.bad[0].reason)
    batch = decode(taken * many, column, form, document_keys=keys)
    assert not batch.bad
    assert len(set(stored(batch))) == len(taken)
    assert values is None or stored(batch)[: len(values)] == values


@pytest.mark.parametrize("out_of_range", ["fail", "clamp", "null"])
@pytest.mark.parametrize("wrong", [1.5, 1e30, -1])
def test_a_number_that_is_not_in_range_is_no_other_key(wrong: float, out_of_range: str) -> None:
    for column in ("UInt8", "Nullable(UInt8)"):
        batch = decode([1, 255, 0, wrong], column, out_of_range=out_of_range)
        assert [bad.index for bad in batch.bad] == [3]
        assert stored(batch) == [1, 255, 0]


@pytest.mark.parametrize(
    "column", ["Float64", "Decimal(38, 4)", "Date", "DateTime", "DateTime64(3)", "Bool", "Enum8('a' = 1)", "IPv4"]
)
def test_other_columns_are_refused(column: str) -> None:
    with pytest.raises(TableError, match="whose _id differs can have one value"):
        decode([1], column)
