"""Which columns a topic's key has: learned from the keys of rows, from nothing else, and never guessed to be none."""

import base64
import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.change import Records, Skipped
from ch_sink.model.policy import Policy, policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.avro import Topic
from tests.support.avro import records as avro_records
from tests.support.decoding import listed, replacing
from tests.support.event import NO_ROWS, event, records, row

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
ID = {"name": "id", "type": "long"}


def text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def table(*columns: str, key: tuple[str, ...]) -> TargetTable:
    return replacing(tuple(Column(c, "String") for c in columns), key)


@pytest.mark.parametrize(("key", "value", "kind"), NO_ROWS)
def test_the_key_is_not_that_of_a_record_that_changes_no_row(key: Any, value: Any, kind: Skipped) -> None:
    """The table has columns of the names that those keys have, outside its own key."""
    found = {"a": "1", "id": "x", "prefix": "y"}
    batch = Decoder(table("a", "id", "prefix", key=("a",)), policy_of()).decode(
        records((text(key), text(value)), (text({"a": "1"}), event("c", found)))
    )
    assert not batch.bad
    assert batch.skipped_counts == {kind: 1}
    assert listed(batch.key) == [{"a": b"1"}]


@pytest.mark.parametrize("columns", [(), ("id",)])
@pytest.mark.parametrize("id_type", ["Int64", "String"])
def test_keys_that_are_the_text_of_a_struct_stop_the_stream(columns: tuple[str, ...], id_type: str) -> None:
    """Every record would be a dead letter, or have a row of its own."""
    found = replacing((Column("id", id_type), Column("v", "Nullable(String)")), ("id",))
    decoder = Decoder(found, policy_of(key_columns=columns))
    chunk = records((b"Struct{id=1}", event("c", row(1))), (b"Struct{id=2}", event("c", row(2))))
    with pytest.raises(StreamFailed, match=r"keys of topic .* are text such as 'Struct\{id=1\}'") as stopped:
        decoder.learn(chunk)
    assert "key.converter" in (stopped.value.hint or "")


def test_one_such_key_among_others_is_a_bad_record() -> None:
    chunk = records((b"Struct{id=1}", event("c", row(1))), (b'{"id":2}', event("c", row(2))))
    batch = Decoder(TABLE, policy_of()).decode(chunk)
    assert [bad.kind for bad in batch.bad] == ["key"]
    assert len(batch) == 1


@pytest.mark.parametrize("key", [b'{"id":"\xff"}', b"{", b'{"id":1,"other":2}', b""])
@pytest.mark.parametrize("value", [event("c", row(1)), b'{"id":1,"v":"x"}'])
def test_a_key_that_cannot_be_read_is_a_bad_record_also_where_it_is_the_only_one(key: bytes, value: bytes) -> None:
    batch = Decoder(TABLE, policy_of()).decode(records((key, value)))
    assert [bad.kind for bad in batch.bad] == ["key"]
    assert not len(batch)


def test_a_null_value_whose_key_cannot_be_read_is_a_bad_record() -> None:
    batch = Decoder(TABLE, policy_of(tombstones="delete")).decode(records((b'{"other":1}', None)))
    assert "'other'" in batch.bad[0].reason
    assert not len(batch)


def test_the_text_null_as_key_leaves_it_to_the_row() -> None:
    target = table("k", key=("k",))
    batch = Decoder(target, policy_of()).decode(
        records((b"abc", event("c", {"k": "abc"})), (b"null", event("c", {"k": "n"})))
    )
    assert listed(batch.key) == [{"k": b"abc"}, {"k": b"n"}]


def test_a_broken_struct_among_texts_is_bad_by_itself() -> None:
    schema = {"type": "struct", "fields": [{"type": "string", "field": "k"}]}
    broken = text({"schema": schema, "payload": {"k": 1}})
    batch = Decoder(table("k", key=("k",)), policy_of()).decode(
        records((b"abc", event("c", {"k": "abc"})), (broken, event("c", {"k": "x"})), (b"xy", event("c", {"k": "xy"})))
    )
    assert [bad.index for bad in batch.bad] == [1]
    assert batch.source_index.tolist() == [0, 2]


def avro(topic: Topic, target: TargetTable, *pairs: tuple[bytes, bytes], policy: Policy | None = None) -> Any:
    found: Records = avro_records(list(pairs))
    return Decoder(target, policy or policy_of(), registry=topic.registry).decode(found)


def test_rows_in_avro_that_have_an_id_and_a_status_tell_the_key() -> None:
    topic = Topic()
    fields = [ID, {"name": "status", "type": "string"}]
    value = topic.write({"type": "record", "name": "Value", "fields": fields}, {"id": 1, "status": "BEGIN"})
    target = replacing((Column("id", "Int64"), Column("status", "String")), ("id",))
    batch = avro(topic, target, (topic.write({"type": "record", "name": "Key", "fields": [ID]}, {"id": 1}), value))
    assert batch.key.to_pylist() == [{"id": 1}]
    assert batch.after.to_pylist() == [{"id": 1, "status": b"BEGIN"}]


@pytest.mark.parametrize("first", ["schema", "payload", "payload_id", "schema_id"])
@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_a_first_column_called_like_a_part_of_the_schema_envelope(first: str, form: str) -> None:
    target = table(first, "v", key=(first, "v"))
    fields = {first: "1", "v": "x"}
    value = event("c", fields) if form == "envelope" else text(fields)
    batch = Decoder(target, policy_of()).decode(records((text(fields), value), (text(fields), value)))
    assert not batch.bad
    assert listed(batch.key) == [{first: b"1", "v": b"x"}] * 2
    assert batch.after.to_pylist() == listed(batch.key)


def test_columns_called_schema_and_payload_and_no_others() -> None:
    fields = {"schema": "1", "payload": "x"}
    batch = Decoder(table("schema", "payload", key=("schema",)), policy_of()).decode(
        records((text({"schema": "1"}), text(fields)))
    )
    assert batch.after.to_pylist() == [{"schema": b"1", "payload": b"x"}]
    assert batch.key is not None


@pytest.mark.parametrize("odd", [b"", b"x", b"7", b'{"v":"x"}', b'{"id":1,"v":"x"}', b"[1]"])
@pytest.mark.parametrize("columns", [(), ("id",)])
def test_an_odd_key_does_not_decide_how_the_next_ones_are_read(odd: bytes, columns: tuple[str, ...]) -> None:
    """The columns are known, and the first key without schema is odd."""
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}
    first = text({"schema": schema, "payload": {"id": 1}})
    decoder = Decoder(TABLE, policy_of(key_columns=columns))
    pairs = [(first, event("c", row(1))), (odd, event("c", row(7))), (b'{"id":3}', event("c", row(3)))]
    for _ in range(2):
        batch = decoder.decode(records(*pairs, (b'{"id":4}', event("c", row(4)))))
        readable = [1] if odd == b"7" else []
        assert [bad.index for bad in batch.bad] == ([] if readable else [1])
        assert batch.source_index.tolist() == sorted([0, 2, 3, *readable])


def test_a_null_value_that_deletes_a_document_tells_the_key_by_itself() -> None:
    columns = (Column("_id", "String"), Column("document", "String"))
    key = text({"id": '{"$oid":"64b0000000000000000000aa"}'})
    batch = Decoder(replacing(columns, ("_id",)), policy_of(tombstones="delete")).decode(records((key, None)))
    assert not batch.bad
    assert listed(batch.key) == [{"_id": b"64b0000000000000000000aa"}]


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_key_is_not_that_of_a_tombstone_of_another_table(chunks: int) -> None:
    """Behind the delete of a signal stands a null value with the signal's key."""
    decoder = Decoder(table("a", "id", key=("a",)), policy_of())
    pairs = [(text({"id": "6d5f"}), None), (text({"a": "1"}), event("c", {"a": "1", "id": "x"}))]
    for some in [pairs] if chunks == 1 else [[pair] for pair in pairs]:
        batch = decoder.decode(records(*some))
        assert not batch.bad
    assert listed(batch.key) == [{"a": b"1"}]


def test_a_null_value_that_deletes_tells_the_key_where_nothing_else_does() -> None:
    """Also of a table that is sorted by something else."""
    for target in (TABLE, replacing(TABLE.columns[:2], ("v",))):
        batch = Decoder(target, policy_of(tombstones="delete")).decode(records((b'{"id":7}', None)))
        assert not batch.bad
        assert listed(batch.key) == [{"id": 7}]


def test_a_table_that_is_sorted_by_another_key_has_the_key_learned_again() -> None:
    """The topic's key has changed, and the table was recreated: the profile in the ledger still has the old key."""
    columns = (*(Column(name, "Int64") for name in ("id", "tenant")), Column("v", "Nullable(String)"))
    new = records((text({"id": 1, "tenant": 2}), event("c", {"id": 1, "tenant": 2, "v": "x"})))
    profile = Decoder(replacing(columns, ("id",)), policy_of()).learn(records((1, event("c", row(1)))))
    assert profile.key_columns == ("id",)
    as_before = Decoder(replacing(columns, ("id",)), policy_of())
    bad = as_before.decode(new, as_before.learn(new, profile)).bad
    assert "earlier ones (since offset 100) had id" in bad[0].reason
    recreated = Decoder(replacing(columns, ("id", "tenant")), policy_of())
    batch = recreated.decode(new, recreated.learn(new, profile))
    assert not batch.bad
    assert listed(batch.key) == [{"id": 1, "tenant": 2}]


TEXTS = ["80e12345", "4e10", "12", " 12", "-0", "0", "1e3", "true", "[]"]


def test_bare_texts_are_keys_as_they_are() -> None:
    found = replacing((Column("id", "String"),), ("id",))
    decoder = Decoder(found, policy_of(key_columns=("id",)))
    chunk = records(
        *((t.encode(), event("c", {"id": t})) for t in TEXTS), *((text(t), event("c", {"id": t})) for t in TEXTS)
    )
    batch = decoder.decode(chunk, decoder.learn(chunk))
    assert not batch.bad
    assert [r["id"].decode() for r in listed(batch.key)] == [*TEXTS, *TEXTS]


@pytest.mark.parametrize(("key", "own"), [(b'"q"', '"q"'), (b"[B@1f2a", "QQ=="), (b"12 ", "12")])
def test_a_bare_key_that_is_not_its_rows_is_a_bad_record(key: bytes, own: str) -> None:
    found = replacing((Column("id", "String"),), ("id",))
    decoder = Decoder(found, policy_of(key_columns=("id",)))
    chunk = records(
        (b"a", event("c", {"id": "a"})), (key, event("c", {"id": own})), (b"b", event("d", None, {"id": "b"}))
    )
    batch = decoder.decode(chunk, decoder.learn(chunk))
    assert [(bad.index, bad.kind) for bad in batch.bad] == [(1, "key")]
    assert [r["id"] for r in listed(batch.key)] == [b"a", b"b"]


VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "field": "id",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}


@pytest.mark.parametrize(("column", "taken"), [("Int64", ["1", "2"]), ("Decimal(9, 1)", ["1", "2", "1.5"])])
def test_decimals_whose_scale_varies_are_keys_of_number_columns(column: str, taken: list[str]) -> None:
    """Oracle's NUMBER: a number that does not fit is a bad record, not another row's key."""

    def key(number: str) -> bytes:
        digits = str(number).replace(".", "")
        value = base64.b64encode(int(digits).to_bytes(2, "big")).decode()
        payload = {"id": {"scale": len(number.partition(".")[2]), "value": value}}
        return text({"schema": {"type": "struct", "fields": [VARIABLE]}, "payload": payload})

    decoder = Decoder(replacing((Column("id", column),), ("id",)), policy_of())
    chunk = records(*((key(n), event("c", {"id": int(float(n))})) for n in (*taken, "1.55")))
    batch = decoder.decode(chunk, decoder.learn(chunk))
    assert [(bad.index, bad.kind) for bad in batch.bad] == [(len(taken), "key")]
    assert [str(r["id"]).removesuffix(".0") for r in listed(batch.key)] == taken


def test_a_bare_number_is_read_as_the_column_s_comment_says() -> None:
    kind = Column("id", "String", comment="debezium: int64 io.debezium.time.Timestamp")
    decoder = Decoder(replacing((kind,), ("id",)), policy_of(key_columns=("id",)))
    chunk = records((b"1700000000000", event("c", {"id": 1_700_000_000_000})))
    batch = decoder.decode(chunk, decoder.learn(chunk))
    assert not batch.bad
    assert listed(batch.key) == [{"id": b"2023-11-14 22:13:20"}]


def test_a_key_called_null_is_that_of_its_row() -> None:
    found = replacing((Column("id", "String"),), ("id",))
    decoder = Decoder(found, policy_of(key_columns=("id",)))
    chunk = records((b"null", event("c", {"id": "null"})), (b"null", event("d", None, {"id": "null"})))
    batch = decoder.decode(chunk, decoder.learn(chunk))
    assert [r["id"] for r in listed(batch.key)] == [b"null"] * 2
