"""Keys of collections in which ``_id`` is a number here and a text there."""

import json
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId

from ch_sink.decode import Decoder
from ch_sink.decode.mongodb.columns import DocumentKeys
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.support.avro import Topic
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.mongodb import event

AVRO_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}
JSON_KEY = {"type": "struct", "fields": [{"field": "id", "type": "string"}]}
HINT = "document.keys: typed"


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


@pytest.mark.parametrize("form", ["plain", "schema", "avro"])
@pytest.mark.parametrize("number", [1, 1.0, Int64(1), Decimal128("1.00")])
def test_a_number_and_its_text_are_never_one_row(number: Any, form: str) -> None:
    batch = decode([ObjectId(), "a name", number, "1", "007", "2", number], form=form)
    assert [bad.index for bad in batch.bad] == [3, 5]
    assert "_id is the text 1, earlier ones of this partition are numbers" in batch.bad[0].reason
    assert HINT in batch.bad[0].reason or HINT in str(batch.bad[0])
    assert stored(batch)[1:] == [b"a name", b"1", b"007", b"1"]
    batch = decode(["1004", number, "b"], form=form)
    assert [bad.index for bad in batch.bad] == [1]
    assert "_id is the number 1, earlier ones of this partition are texts" in batch.bad[0].reason


@pytest.mark.parametrize("cut", range(1, 6))
def test_what_came_first_decides_wherever_the_chunks_end(cut: int) -> None:
    given, _ = records(["x", 7, "1", 2.5, "2.5", "y"])
    policy, state, rows, bad = policy_of(), State(alone=True), [], []
    for start in range(0, len(given), cut):
        part = given.slice(start, start + cut)
        made = plan(part, Target.of(table(), policy), Decoder(table(), policy), state, Ports())
        state = State.from_json(made.state.to_json())
        bad += [start + one.index for one in made.bad]
        rows += [row["_id"] for insert in made.inserts for row in insert.rows.to_pylist()]
    assert bad == [2, 4]
    assert rows == [b"x", b"7", b"2.5", b"y"]


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


@pytest.mark.parametrize(
    ("identity", "may"), [(1, True), ("1", True), (Int64(5), True), ("a", False), (ObjectId("5" * 24), False)]
)
@pytest.mark.parametrize("form", ["plain", "schema", "avro"])
def test_digits_of_an_object_id_are_not_taken_for_a_number(identity: Any, may: bool, form: str) -> None:
    [key] = records([identity], form)[0].keys
    assert key is not None
    assert DocumentKeys(table(), policy_of()).may_be_number(key) == may
