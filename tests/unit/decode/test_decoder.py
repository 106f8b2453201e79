"""Kinds of record, keys, marks, unknown and absent columns."""

import json
from itertools import pairwise
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import ConfigError
from ch_sink.model.change import ChangeBatch, Half, Headers, Op, Skipped
from ch_sink.model.policy import Policy, policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import listed, replacing
from tests.support.event import event, records, row
from tests.support.fixtures import as_records, partitions, topics

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))


def decode(
    *pairs: tuple[Any, bytes | None], table: TargetTable = TABLE, policy: Policy | None = None, **more: Any
) -> ChangeBatch:
    return Decoder(table, policy or policy_of(), **more).decode(records(*pairs))


def test_recorded_topics_without_rows_are_set_aside_whole() -> None:
    for stream in (
        "mariadb-json_schema-meta",
        "postgres-json_schema-meta",
        "mariadb-json_plain",
        "postgres-json_plain",
    ):
        for topic in topics(stream):
            if topic.count(".") < 2:
                for chunk in partitions(stream, topic).values():
                    batch = Decoder(TABLE, policy_of()).decode(chunk)
                    assert not batch.bad
                    assert batch.skipped_counts.total() == len(chunk)


def test_truncate_is_a_row_without_key_and_images() -> None:
    batch = decode((1, event("c", row(1))), (None, event("t")), (2, event("c", row(2))))
    assert batch.op.tolist() == [Op.CREATE, Op.TRUNCATE, Op.CREATE]
    assert listed(batch.key) == [{"id": 1}, {"id": None}, {"id": 2}]
    assert batch.after.to_pylist()[1] == {"id": None, "v": None}


def test_delete_takes_its_key_from_the_kafka_key_and_has_no_after_image() -> None:
    batch = decode((7, event("d", before=row(7), after=None)), want_before=True)
    assert listed(batch.key) == [{"id": 7}]
    assert batch.after.to_pylist() == [{"id": None, "v": None}]
    assert listed(batch.before) == [{"id": 7, "v": b"x"}]


BAD: list[tuple[Any, bytes, str, str | None, str]] = [
    (1, b"{nonsense", "decode", None, ""),
    (1, event("c", {"id": "z", "v": None}), "decode", "id", ""),
    (1, event("u"), "decode", None, "without an after image"),
    (1, event("x", row(1)), "decode", None, "unknown operation 'x'"),
    (1, event("c", row(2**63)), "range", "id", ""),
    (1, event("c", row(1), pos=2**40), "position", None, "source.pos"),
    (b'{"id":"x"}', event("c", row(1)), "key", None, ""),
    (b'{"other":1}', event("c", row(1)), "key", None, ""),
    (1, b"\x00\x00\x00\x00\x01abc", "decode", None, "Confluent framing"),
]


def test_bad_records_name_their_reason_and_their_neighbours_land() -> None:
    batch = decode((1, event("c", row(1))), *((key, value) for key, value, *_ in BAD), (2, event("c", row(2))))
    assert batch.source_index.tolist() == [0, 10]
    assert [(b.index, b.kind, b.column) for b in batch.bad] == [(i, *one[2:4]) for i, one in enumerate(BAD, 1)]
    assert all(one[4] in b.reason for b, one in zip(batch.bad, BAD, strict=True))


def test_headers_mark_the_halves_of_a_key_change() -> None:
    mark: list[Headers | None] = [
        [("__debezium.context.taskId", b"0"), ("__debezium.newkey", b"{\n")],
        [("__debezium.newkey", b"")],
        [("__debezium.oldkey", None)],
        None,
        [("__debezium.newkey", b"")],
    ]
    chunk = records(
        (1, event("d")),
        (1, None),
        (2, event("c", row(2))),
        (3, event("c", row(3))),
        (3, event("c", row(3))),
        headers=mark,
    )
    batch = Decoder(TABLE, policy_of()).decode(chunk)
    assert batch.half.tolist() == [Half.DELETE, Half.CREATE, Half.NONE, Half.NONE]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"id":5}', 5),
        (b"5", 5),
        (b'{"schema":{"type":"int64","optional":false},"payload":5}', 5),
        (b'{"schema":{"type":"struct","fields":[{"field":"id","type":"int32"}]},"payload":{"id":5}}', 5),
        (b'{ "schema" : null , "payload" : {"id":5}}', 5),
    ],
)
def test_keys_in_every_framing(key: bytes, expected: int) -> None:
    batch = decode((key, event("c", row(5))), (key, event("d")))
    assert not batch.bad
    assert listed(batch.key) == [{"id": expected}] * 2


@pytest.mark.parametrize("key", [b'"caf\xc3\xa9"', b"caf\xc3\xa9"])
def test_text_keys_with_and_without_quotes(key: bytes) -> None:
    table = replacing((Column("name", "String"),), ("name",))
    batch = decode((key, event("c", {"name": "café"})), table=table)
    assert listed(batch.key) == [{"name": "café".encode()}]


def test_without_kafka_keys_the_configured_columns_are_the_key() -> None:
    rows = [(None, event("c", row(1))), (None, event("d", before=row(1))), (None, event("d")), (None, event("t"))]
    batch = decode(*rows, policy=policy_of(key_columns=("id",)))
    assert listed(batch.key) == [{"id": 1}, {"id": 1}, {"id": None}]
    assert [b.index for b in batch.bad] == [2]
    assert decode(*rows).key is None


@pytest.mark.parametrize("alone", [True, False])
def test_without_kafka_keys_an_update_of_the_key_is_a_bad_record(alone: bool) -> None:
    """One event would be two changes, and the row would stay under its former key."""
    moved = (None, event("u", row(2), before=row(1)))
    still = (None, event("u", row(1, "b"), before=row(1, "a")))
    batch = decode(*([moved] if alone else [still, moved, still]), policy=policy_of(key_columns=("id",)))
    assert [(bad.index, bad.kind, bad.column) for bad in batch.bad] == [(0 if alone else 1, "key", "id")]
    assert "message.key.columns" in batch.bad[0].reason
    assert len(batch) == (0 if alone else 2)
    assert not decode((b'{"id":2}', moved[1]), policy=policy_of(key_columns=("id",))).bad


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [("Array(Int64)", [1, 2], [2, 1]), ("Nullable(String)", None, ""), ("Float64", "NaN", 1.5), ("Float64", 1.5, 2)],
)
def test_without_kafka_keys_equal_keys_of_any_type_are_the_same_row(kind: str, value: Any, other: Any) -> None:
    table = replacing((Column("id", kind), Column("v", "Nullable(String)")), ("id",))
    images = [{"id": value, "v": "a"}, {"id": value, "v": "b"}, {"id": other, "v": "c"}]
    pairs = [(None, event("u", after, before=before)) for before, after in pairwise(images)]
    batch = decode(*pairs, table=table, policy=policy_of(key_columns=("id",)))
    assert [bad.index for bad in batch.bad] == [1]
    assert batch.source_index.tolist() == [0]


def test_unknown_fields_are_reported_and_the_rest_is_decoded() -> None:
    more = {"new": 1, "other name": [None]}
    batch = decode((1, event("c", row(1))), (2, event("c", row(2) | more)), (3, event("u", row(3) | {"new": None})))
    assert [(c.name, c.first_offset, c.clickhouse_type) for c in batch.unknown] == [
        ("new", 101, "Nullable(Int64)"),
        ("other name", 101, "Nullable(String)"),
    ]
    assert [r["id"] for r in batch.after.to_pylist()] == [1, 2, 3]


def test_unknown_fields_of_a_schema_have_a_type_and_default() -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "extra", "type": "int32", "default": 7}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    value = {"schema": schema, "payload": json.loads(event("c", {"id": 1, "extra": 8}))}
    batch = decode((1, json.dumps(value, separators=(",", ":")).encode()))
    (found,) = batch.unknown
    assert (found.name, found.first_offset, found.clickhouse_type, found.default) == ("extra", 100, "Int32", "7")
    assert batch.absent["v"].tolist() == [True]


def test_absent_fields_are_told_from_null() -> None:
    decoder = Decoder(TABLE, policy_of())
    for _ in range(2):
        batch = decoder.decode(
            records(
                (1, event("c", {"id": 1})), (2, event("c", row(2, None))), (1, event("d")), (3, event("c", {"id": 3}))
            )
        )
        assert batch.absent["v"].tolist() == [True, False, False, True]
        assert batch.after["v"].to_pylist() == [None] * 4
    batch = decoder.decode(records((1, event("c", {"id": 1}))))
    assert batch.absent["v"].tolist() == [True]
    assert not decoder.decode(records((1, event("c", row(1))))).absent


def test_computed_columns_are_never_decoded() -> None:
    table = replacing((Column("id", "Int64"), Column("v", "String", default_kind="MATERIALIZED")), ("id",))
    batch = decode((1, event("c", row(1))), table=table)
    assert batch.after.column_names == ["id"]
    assert not batch.unknown


def test_a_schema_change_in_mid_chunk_keeps_kafka_order() -> None:
    stream = "mariadb-json_schema"
    topic = next(t for t in topics(stream) if t.endswith(".ac"))
    recorded = topics(stream)[topic]
    table = replacing(
        (
            Column("id", "Int64"),
            Column("k", "Int32"),
            Column("v", "Nullable(String)"),
            Column("extra", "Int32"),
            Column("d2", "Nullable(Decimal(10, 2))"),
        ),
        ("id", "k"),
    )
    for partition in {r.partition for r in recorded}:
        own = [r for r in recorded if r.partition == partition]
        batch = Decoder(table, policy_of()).decode(as_records(own))
        assert batch.offset.tolist() == [r.offset for r in own if r.value]
        for i, found in enumerate(batch.after.to_pylist()):
            after = json.loads(own[batch.source_index[i]].value or b"")["payload"]["after"]
            if after is not None:
                assert {n: found[n] for n in ("id", "k")} == {n: after[n] for n in ("id", "k")}
                assert batch.absent.get("extra", [False] * len(batch))[i] == ("extra" not in after)
                assert found["extra"] == after.get("extra")


def test_sample_without_schema_infers_and_needs_no_key() -> None:
    chunk = records(
        (1, event("c", {"id": 1, "f": 1, "b": True, "n": None, "j": {"a": 1}})), (2, event("c", {"id": 2, "f": 1.5}))
    )
    schema = sample_schema(chunk)
    assert schema is not None
    assert [(f.name, f.type.kind, f.type.optional) for f in schema.fields] == [
        ("id", "int64", False),
        ("f", "float64", True),
        ("b", "boolean", True),
        ("n", "string", True),
        ("j", "struct", True),
    ]
    assert [f.name for f in schema.key] == ["id"]
    assert sample_schema(records((1, b'{"ts_ms":1}'))) is None


def test_only_json_is_decoded() -> None:
    with pytest.raises(ConfigError, match="protobuf"):
        Decoder(TABLE, policy_of(), format="protobuf")


def test_a_connector_without_a_module_of_its_own_is_read_like_any_other() -> None:
    batch = decode((1, event("c", row(1), connector="vitess")))
    assert (batch.bad, batch.connector, batch.has_commit.tolist()) == ([], "vitess", [False])


def test_a_record_with_another_connectors_block_leaves_its_neighbours() -> None:
    bad = event("c", row(2)).replace(b'"pos":', b'"pos":"here","x":')
    assert b'"here"' in bad
    batch = decode((1, event("c", row(1))), (2, bad), (3, event("c", row(3))))
    assert ([b.index for b in batch.bad], len(batch), batch.connector) == ([1], 2, "mysql")


@pytest.mark.parametrize("from_row", [False, True], ids=["Kafka key", "key of the row"])
def test_a_null_in_the_key_is_no_default_of_the_column(from_row: bool) -> None:
    """Stored as 0 it would be the row of key 0."""
    null = event("c", row(None, "null"))  # type: ignore[arg-type]
    given = [(b'{"id":null}', null), (0, event("c", row(0, "zero"))), (None, event("t"))]
    if from_row:
        given = [(None if value is null else key, value) for key, value in given]
    batch = decode(*given, policy=policy_of(key_columns=("id",)))
    assert [(bad.index, bad.kind, bad.column) for bad in batch.bad] == [(0, "key", "id")]
    assert batch.source_index.tolist() == [1, 2]
    nullable = replacing((Column("id", "Nullable(Int64)"), Column("v", "Nullable(String)")), ("id",))
    held = decode(*given, table=nullable, policy=policy_of(key_columns=("id",)))
    assert not held.bad
    assert held.key.column("id").to_pylist() == [None, 0, None]


@pytest.mark.parametrize(("reaction", "kind"), [("clamp", "key"), ("null", "range")])
def test_a_key_that_does_not_fit_is_never_clamped(reaction: Any, kind: str) -> None:
    narrow = replacing((Column("id", "Int8"), Column("v", "Nullable(String)")), ("id",))
    given = [(number, event("c", row(number))) for number in (200, 127, 300)]
    batch = decode(*given, table=narrow, policy=policy_of(out_of_range=reaction))
    assert [(bad.index, bad.kind) for bad in batch.bad] == [(0, kind), (2, kind)]
    assert batch.source_index.tolist() == [1]


def test_thousands_of_records_keep_their_order_and_lose_only_the_bad_ones() -> None:
    pairs: list[tuple[Any, bytes | None]] = [(i, event("c", row(i, f"v{i}"))) for i in range(10_000)]
    bad = [0, 4_095, 4_096, 4_097, 9_999]
    for i in bad:
        pairs[i] = (i, b'{"before":null')
    pairs[5_000] = (4_999, None)
    pairs[7_000] = (7_000, event("c", row(7_000, "v7000") | {"more": 1}))
    batch = decode(*pairs)
    there = [i for i in range(10_000) if i not in (*bad, 5_000)]
    assert batch.source_index.tolist() == there
    assert batch.offset.tolist() == [100 + i for i in there]
    assert batch.after["v"].to_pylist() == [f"v{i}".encode() for i in there]
    assert batch.key["id"].to_pylist() == there
    assert [b.index for b in batch.bad] == bad
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}
    assert [(c.name, c.first_offset) for c in batch.unknown] == [("more", 7_100)]
