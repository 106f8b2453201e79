"""Keys of collections in which ``_id`` is a number here and a text there."""

import json
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId

from ch_sink.decode import Decoder
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


@pytest.mark.parametrize("column", ["String", "LowCardinality(String)", "FixedString(24)"])
@pytest.mark.parametrize("form", ["plain", "schema", "avro"])
@pytest.mark.parametrize("number", [1, 1.5, Int64(1), Decimal128("1.00"), float("nan")])
def test_a_number_and_its_text_are_never_one_row(number: Any, form: str, column: str) -> None:
    texts = ["596e275826f08b2730779e1f"] * 70  # as many as the compiled scanner reads
    batch = decode([ObjectId(), *texts, number, "1", "007"], column, form)
    assert [bad.index for bad in batch.bad] == [71]
    assert f"_id is the number {1.5 if number == 1.5 else 'NaN' if number != number else 1}" in batch.bad[0].reason
    assert [one.strip(b"\0") for one in stored(batch)[-2:]] == [b"1", b"007"]


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


def test_integer_columns_take_numbers_only() -> None:
    batch = decode([1, "1", "x", 2], "Int64")
    assert stored(batch)[0] == 1
    assert 2 in [bad.index for bad in batch.bad]
