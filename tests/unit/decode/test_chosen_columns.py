"""Columns that are left out, renamed, masked and added, as the decoder gives them."""

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.decode import decoder_for
from ch_sink.decode.chosen import chosen_unknown, masked
from ch_sink.decode.unknown_columns import declared_unknown
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import StreamFailed, TableError
from ch_sink.model.change import BadRecord, ChangeBatch
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.pipeline.storing import dead_letter_of
from ch_sink.pipeline.target import Target
from ch_sink.table.evolve import unfilled
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import TableSpec, chosen_schema, plan_columns
from ch_sink.types.column import Column
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import literal
from tests.support.decoding import listed, replacing
from tests.support.event import event, records
from tests.support.one_column import records as one_column
from tests.unit.types.type_cases import Case

SCALE = {"parameters": {"scale": "2", "connect.decimal.precision": "10"}}

CHOSEN = {
    "exclude": ("secret",),
    "rename": (("mail", "email"), ("id", "user_id")),
    "mask": (("phone", "sha256"), ("mail", "redact")),
    "add": (("tenant", "'eu'"),),
}
ROW = {"id": 1, "mail": "a@b", "phone": 4711, "secret": "hunter2"}


def table(*more: Column, key: tuple[str, ...] = ("user_id",)) -> TargetTable:
    columns = (
        Column("user_id", "Int64"),
        Column("email", "Nullable(String)"),
        Column("phone", "Nullable(String)"),
        Column("tenant", "LowCardinality(String)"),
    )
    return replace(replacing((*columns, *more), key), added=(("tenant", pa.scalar(b"eu", pa.binary())),))


def decode(target: TargetTable, *rows: tuple[Any, Any], chosen: dict[str, Any] = CHOSEN, **choices: Any) -> ChangeBatch:
    """Decode pairs of a row before and a row after."""
    policy = policy_of(**choices)
    policy = replace(policy, columns=ColumnPolicy(**chosen))
    found = records(
        *[(json.dumps({"id": (after or before)["id"]}).encode(), _value(before, after)) for before, after in rows]
    )
    return decoder_for(target, policy, want_before=True).decode(found)


def _value(before: Any, after: Any) -> bytes:
    op = "c" if before is None else "d" if after is None else "u"
    return event(op, after, before)


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest().encode()


def test_both_images_have_the_chosen_columns():
    batch = decode(table(), (None, ROW), (ROW, {**ROW, "phone": None}), (ROW, None))
    assert batch.unknown == []
    assert batch.bad == []
    new = {"user_id": 1, "email": b"***", "phone": sha("4711"), "tenant": b"eu"}
    assert batch.after.to_pylist()[:2] == [new, {**new, "phone": None}]
    assert listed(batch.before)[1:] == [new, new]
    assert listed(batch.before)[0]["tenant"] is None
    assert listed(batch.key) == [{"user_id": 1}] * 3


def test_a_column_that_the_table_has_but_the_choice_leaves_out_is_not_filled():
    target = replace(table(Column("secret", "String")), left_out=frozenset(("secret",)))
    batch = decode(target, (None, ROW))
    assert "secret" not in batch.after.column_names
    assert "secret" not in {c.name for c in target.source_columns}


def test_unavailable_and_absent_values_keep_their_marks_under_the_new_name():
    gone = "__debezium_unavailable_value"
    postgres = {"connector": "postgresql", "lsn": 1, "txId": 1, "sequence": '["1","1"]'}
    policy = replace(policy_of(), columns=ColumnPolicy(**CHOSEN))
    found = records(
        (1, event("u", {**ROW, "mail": gone, "phone": gone}, None, **postgres)),
        (2, event("c", {"id": 2, "phone": 1}, None, **postgres)),
    )
    batch = decoder_for(table(), policy).decode(found)
    assert batch.unavailable["email"].tolist() == [True, False]
    assert batch.unavailable["phone"].tolist() == [True, False]
    assert batch.absent["email"].tolist() == [False, True]
    assert batch.after.column("email").to_pylist() == [None, None]


def test_added_columns_by_which_the_table_is_sorted_belong_to_the_key():
    batch = decode(table(key=("tenant", "user_id")), (None, ROW))
    assert listed(batch.key) == [{"tenant": b"eu", "user_id": 1}]
    target = Target.of(table(key=("tenant", "user_id")), replace(policy_of(), columns=ColumnPolicy(**CHOSEN)))
    assert target.stored_key(("id",)) == ("tenant", "user_id")


def test_a_single_value_as_key_is_the_renamed_column():
    policy = replace(policy_of(), columns=ColumnPolicy(**CHOSEN))
    found = records((b"1", _value(None, ROW)))
    batch = decoder_for(table(key=("tenant", "user_id")), policy).decode(found)
    assert listed(batch.key) == [{"tenant": b"eu", "user_id": 1}]


@pytest.mark.parametrize(
    ("kind", "hashed"),
    [
        ("sha256", lambda text: hashlib.sha256(text).hexdigest().encode()),
        ("sha512", lambda text: hashlib.sha512(text).hexdigest().encode()),
        ("hmac-sha256", lambda text: hmac.new(b"k", text, "sha256").hexdigest().encode()),
        ("redact", lambda _: b"***"),
    ],
)
def test_masks_are_of_each_value(kind, hashed):
    values = [b"a", None, b"", "ü".encode(), b"a"]
    found = masked(pa.array(values, pa.binary()), kind, "k")
    assert found.to_pylist() == [None if value is None else hashed(value) for value in values]
    assert masked(pa.array([], pa.binary()), kind, "k").to_pylist() == []


@pytest.mark.parametrize(("group", "word"), [("exclude", "excludes"), ("mask", "masks")])
def test_a_column_of_the_key_is_neither_left_out_nor_masked(group, word):
    chosen = {group: ("id",) if group == "exclude" else (("id", "sha256"),)}
    target = replacing((Column("id", "String"), Column("mail", "String")), ("id",))
    with pytest.raises(StreamFailed, match=f"columns {word} 'id', which is a column of the topic's key"):
        decode(target, (None, {"id": 1, "mail": ""}), chosen=chosen)


def test_new_columns_are_asked_for_under_the_names_and_types_that_are_stored():
    batch = decode(table(), (None, {**ROW, "fax": 5, "note": "x"}), chosen={**CHOSEN, "mask": (("fax", "sha256"),)})
    found = {c.name: c for c in batch.unknown}
    assert set(found) == {"fax", "note"}
    assert found["fax"].clickhouse_type == "Nullable(String)"
    assert found["fax"].comment == ""
    assert found["fax"].after is None, "the field before it is left out"
    assert found["note"].after == "fax"
    chosen = {**CHOSEN, "rename": (*CHOSEN["rename"], ("note", "remark"))}
    [column] = decode(table(), (None, {**ROW, "note": "x"}), chosen=chosen).unknown
    assert (column.name, column.clickhouse_type) == ("remark", "Nullable(String)")


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "string", "default": "none"},
        {"type": "int32", "default": 5, "optional": False},
        {"type": "boolean", "default": True, "optional": False},
        {"type": "int64", "default": 2**63 - 1},
        {"type": "int32", "name": "io.debezium.time.Date", "default": 18_000},
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "default": 1_600_000_000_123_456},
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "default": "AfQ=", **SCALE},
        {"type": "string", "name": "io.debezium.data.Uuid", "default": "00000000-0000-0000-0000-000000000007"},
    ],
    ids=lambda kind: f"{kind['type']} {kind.get('name', '')}".strip(),
)
def test_the_default_of_a_new_masked_column_is_the_mask_of_its_value(kind: dict[str, Any]) -> None:
    """The job and ``init`` add it with the text that an event with this value stores."""
    case = Case("x", {"optional": True, **kind}, "", ((kind["default"], ""),))
    policy = replace(policy_of(), columns=ColumnPolicy(mask=(("x", "sha256"),)))
    there = replacing((Column("id", "Int64"), Column("x", "Nullable(String)")), ("id",))
    [mask, *_] = decoder_for(there, policy).decode(one_column(case, schema=True)).after["x"].to_pylist()
    [new] = decoder_for(replacing(there.columns[:1], ("id",)), policy).decode(one_column(case, schema=True)).unknown
    schema = sample_schema(one_column(case, schema=True))
    assert schema is not None
    plan = plan_columns(chosen_schema(schema, policy.columns), TableSpec("d", "t"))[1]
    assert (new.name, new.filled, new.clickhouse_type) == ("x", True, plan.type)
    assert [new.default, plan.default] == [literal(mask.decode())] * 2


def test_a_masked_column_whose_default_is_no_text_is_not_known_in_stored_rows() -> None:
    source = SourceType("bytes", default="AP8=", has_default=True)
    policy = ColumnPolicy(mask=(("x", "sha256"),))
    there = replacing((Column("id", "Int64"),), ("id",))
    key = Field("id", SourceType("int64", optional=False))
    wanted = chosen_schema(RowSchema((key, Field("x", source)), (key,)), policy)
    assert set(unfilled(there, wanted, TableSpec("d", "t"))) == {"x"}
    assert plan_columns(wanted, TableSpec("d", "t"))[1].default == ""
    [new] = chosen_unknown(declared_unknown(there, {"id": key.type, "x": source}), there, policy, "add_columns")
    assert (new.default, new.filled) == (None, False)


@pytest.mark.parametrize("name", ["email", "tenant"])
def test_a_source_column_whose_name_is_given_to_another_is_refused(name):
    with pytest.raises(StreamFailed, match=f"has a column '{name}'"):
        decode(table(), (None, {**ROW, name: "x"}))
    batch = decode(table(), (None, {**ROW, name: "x"}), evolve="ignore")
    assert batch.after.to_pylist()[0]["email"] == b"***"
    excluded = decode(table(), (None, {**ROW, name: "x"}), chosen={**CHOSEN, "exclude": ("secret", name)})
    assert excluded.unknown == []


def test_a_source_column_named_like_one_of_the_sinks_own_can_be_renamed():
    target = table(Column("source_version", "Int64"))
    chosen = {**CHOSEN, "rename": (*CHOSEN["rename"], ("_version", "source_version"))}
    batch = decode(target, (None, {**ROW, "_version": 9}), chosen=chosen)
    assert batch.unknown == []
    assert batch.after.to_pylist()[0]["source_version"] == 9
    assert decode(target, (None, {**ROW, "_version": 9})).unknown[0].change == "reserved"


def test_columns_can_swap_their_names():
    target = replacing((Column("id", "Int64"), Column("a", "Int64"), Column("b", "Int64")), ("id",))
    batch = decode(target, (None, {"id": 1, "a": 2, "b": 3}), chosen={"rename": (("a", "b"), ("b", "a"))})
    assert batch.after.to_pylist() == [{"id": 1, "a": 3, "b": 2}]


def test_a_fault_in_a_masked_column_does_not_show_the_value():
    batch = decode(table(), (None, {**ROW, "phone": {"a": [1, "hunter3"]}}), (None, {**ROW, "mail": 5}))
    shown = " ".join(f"{b.column} {b.reason}" for b in batch.bad)
    assert "hunter" not in shown
    assert [b.column for b in batch.bad] in ([], ["email"], ["phone", "email"])


def test_a_dead_letter_withholds_the_value_of_a_stream_with_masks():
    found = records((b"1", _value(None, ROW)))
    letter = dead_letter_of(BadRecord(0, "why"), found, withheld=True)
    assert letter.value == b""
    assert letter.key == b"1"
    assert "Kafka has it at this offset" in letter.reason
    assert dead_letter_of(BadRecord(0, "why"), found).value == found.values[0]


def test_the_table_must_have_what_is_added():
    policy = replace(policy_of(), columns=ColumnPolicy(add=(("tenant", "'eu'"),), source=("tenant",)))
    plain = replacing((Column("id", "Int64"),), ("id",))
    with pytest.raises(TableError, match="lacks the column 'tenant'"):
        Target.of(plain, policy)
    with pytest.raises(TableError, match="is not sorted by 'tenant'"):
        Target.of(replacing((Column("id", "Int64"), Column("tenant", "String")), ("id",)), policy)
    Target.of(replacing((Column("id", "Int64"), Column("tenant", "String")), ("tenant", "id")), policy)
