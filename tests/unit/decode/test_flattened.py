"""Flattened rows: what they tell, in every delete mode, with added fields and headers."""

import json
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import flattened_deletes, sample_schema
from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Half, Headers, Op, Records, Skipped
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.choose import each_value
from tests.support.decoding import listed, replacing, table_of
from tests.support.event import chunk_of
from tests.support.fixtures import Recorded, as_records, topic_of, topics
from tests.support.harness import ENGINES
from tests.support.smt import Flatten
from tests.support.stream import schema_of, typed_stream

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
NEW_KEY: Headers = [("__debezium.newkey", b'{"id":2}')]
OLD_KEY: Headers = [("__debezium.oldkey", b'{"id":1}')]


def flat(number: int, v: str | None = "x", **added: Any) -> bytes:
    return json.dumps({"id": number, "v": v, **added}).encode()


def records(*pairs: tuple[Any, bytes | None, Headers | None]) -> Records:
    keys = [k if k is None or isinstance(k, bytes) else json.dumps({"id": k}).encode() for k, _, _ in pairs]
    return chunk_of(keys, [v for _, v, _ in pairs], [h for _, _, h in pairs], first=100, sent=7)


def decode(
    *pairs: tuple[Any, ...], table: TargetTable = TABLE, policy: Policy | None = None, **more: Any
) -> ChangeBatch:
    whole = [(*pair, None)[:3] for pair in pairs]
    return Decoder(table, policy or policy_of(), **more).decode(records(*whole))


def ops(batch: ChangeBatch) -> str:
    return "".join(chr(o) for o in batch.op)


def test_a_row_without_added_fields_is_an_upsert_and_a_null_value_its_delete() -> None:
    batch = decode((1, flat(1)), (2, flat(2, None)), (1, None), (2, b"null"))
    assert ops(batch) == "uudd"
    assert listed(batch.key) == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}]
    assert batch.after.to_pylist()[:2] == [{"id": 1, "v": b"x"}, {"id": 2, "v": None}]
    assert batch.after.to_pylist()[2:] == [{"id": None, "v": None}] * 2
    assert not batch.has_before.any()
    assert not batch.skipped_counts
    assert source_for(batch.connector).default_strategy == "kafka_offset"


@pytest.mark.parametrize("op", ["m", "c", "t"])
def test_the_first_row_may_have_a_column_op_of_its_own(op: str) -> None:
    columns = (Column("id", "Int64"), Column("v", "Nullable(String)"), Column("op", "String"))
    batch = decode((1, flat(1, op=op, __deleted="false")), table=replacing(columns, ("id",)))
    assert listed(batch.key) == [{"id": 1}]
    assert batch.after.to_pylist() == [{"id": 1, "v": b"x", "op": op.encode()}]
    assert (batch.bad, batch.skipped_counts) == ([], {})


def test_the_schema_s_null_payload_is_a_delete_too() -> None:
    """Connect's JsonConverter writes the schema of a null that has one."""
    fields = [{"type": "int64", "optional": False, "field": "id"}, {"type": "string", "optional": True, "field": "v"}]
    schema = {"type": "struct", "fields": fields, "optional": True, "name": "s.t.Value"}

    def framed(payload: Any) -> bytes:
        return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()

    batch = decode((1, framed({"id": 1, "v": "x"})), (1, framed(None)), (None, framed(None)))
    assert ops(batch) == "ud"
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}


def test_deleted_rows_are_deletes_with_a_before_image_and_their_tombstones_are_set_aside() -> None:
    batch = decode(
        (1, flat(1, __deleted="false")),
        (1, flat(1, "old", __deleted="true")),
        (1, None),
        (2, flat(2, __deleted="false")),
        want_before=True,
    )
    assert ops(batch) == "udu"
    assert listed(batch.before) == [{"id": None, "v": None}, {"id": 1, "v": b"old"}, {"id": None, "v": None}]
    assert batch.has_before.tolist() == [False, True, False]
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}


def test_a_tombstone_behind_an_envelope_is_set_aside_unless_it_is_configured_to_delete() -> None:
    block = {"connector": "mysql", "name": "s", "file": "b.1", "pos": 1, "row": 0}
    event = json.dumps({"op": "c", "before": None, "after": {"id": 1, "v": "x"}, "source": block}).encode()
    assert decode((1, event), (1, None)).skipped_counts == {Skipped.TOMBSTONE: 1}
    batch = decode((1, event), (1, None), policy=policy_of(tombstones="delete"))
    assert ops(batch) == "cd"
    assert batch.connector == "mysql"
    assert decode((1, flat(1)), (1, None), policy=policy_of(tombstones="ignore")).skipped_counts == {
        Skipped.TOMBSTONE: 1
    }


def test_a_chunk_of_null_values_only_means_what_the_rows_before_it_mean() -> None:
    decoder = Decoder(TABLE, policy_of())
    alone = records((1, None, None), (2, None, None))
    assert decoder.decode(alone).skipped_counts == {Skipped.TOMBSTONE: 2}
    for row, means in ((flat(1), "dd"), (flat(1, __deleted="false"), "")):
        chunk = records((1, row, None))
        profile = decoder.learn(chunk)
        profile = decoder.learn(alone, profile.after(decoder.decode(chunk, profile)))
        assert ops(decoder.decode(alone, profile)) == means
    assert decoder.decode(alone).skipped_counts == {Skipped.TOMBSTONE: 2}


def test_added_fields_tell_operation_time_and_position() -> None:
    added = {"__op": "c", "__lsn": 9, "__source_sequence": '["5","9"]', "__source_ts_ms": 77, "__table": "t"}
    batch = decode((1, flat(1, **added)), (2, flat(2, **{**added, "__op": "r", "__deleted": "false"})))
    assert ops(batch) == "cr"
    assert batch.connector == "flattened:postgresql"
    assert batch.source_ts.tolist() == [77, 77]
    assert batch.source_name == [""]
    assert not batch.unknown


def test_positions_count_where_the_deletes_have_them_too() -> None:
    """Else a create half of a key change would wait for the values of a delete half that nothing identifies."""
    added = {"__lsn": 9, "__sequence": '["5","9"]'}
    assert decode((1, flat(1, **added))).inner.tolist() == [[0, 0]]
    marked = decode((1, flat(1, **added, __deleted="false")))
    assert (marked.commit.tolist(), marked.inner.tolist(), marked.has_commit.tolist()) == ([[0, 5]], [[0, 9]], [True])
    told: Headers = [("__lsn", b"9"), ("__sequence", b'["5","9"]'), ("__op", b"c"), ("__ts_ms", b"70")]
    batch = decode((1, flat(1), told), (1, None, [*told[:2], ("__op", b"d")]))
    assert ops(batch) == "cd"
    assert batch.inner.tolist() == [[0, 9], [0, 9]]
    assert batch.commit.tolist() == [[0, 5], [0, 5]]
    assert batch.source_ts.tolist() == [70, 7]


def test_headers_may_be_json_with_a_schema() -> None:
    framed = json.dumps({"schema": {"type": "int64"}, "payload": 9}).encode()
    told: Headers = [("__lsn", framed), ("__sequence", b'"[\\"5\\",\\"9\\"]"'), ("__op", b'"r"')]
    batch = decode((1, flat(1), told))
    assert ops(batch) == "r"
    assert batch.commit.tolist() == [[0, 5]]


def test_a_configured_prefix_is_heeded() -> None:
    policy = policy_of(fields_prefix="meta.", headers_prefix="h_")
    batch = decode((1, flat(1, **{"meta.op": "r", "meta.source_ts_ms": 5}), [("h_lsn", b"3")]), policy=policy)
    assert (ops(batch), batch.source_ts.tolist()) == ("r", [5])
    assert batch.connector == "flattened:postgresql"
    assert not batch.unknown


def test_added_fields_that_the_table_has_are_columns_and_still_tell() -> None:
    columns = (Column("id", "Int64"), Column("__op", "String"), Column("__source_ts_ms", "Int64"))
    table = replacing((*columns, Column("__deleted", "String")), ("id",))
    rows = [
        {"id": 1, "__op": op, "__source_ts_ms": 5, "__deleted": gone} for op, gone in (("c", "false"), ("d", "true"))
    ]
    batch = decode(*[(1, json.dumps(row).encode()) for row in rows], table=table)
    assert ops(batch) == "cd"
    assert batch.source_ts.tolist() == [5, 5]
    assert batch.after.to_pylist()[0] == {"id": 1, "__op": b"c", "__source_ts_ms": 5, "__deleted": b"false"}


def test_a_key_change_is_two_halves() -> None:
    batch = decode((1, flat(1)), (1, None, NEW_KEY), (2, flat(2), OLD_KEY))
    assert ops(batch) == "udc"
    assert batch.half.tolist() == [Half.NONE, Half.DELETE, Half.CREATE]


def test_unknown_fields_are_told_but_not_the_added_ones() -> None:
    batch = decode((1, flat(1)), (1, flat(1, more=3, __op="u", __x=1)), (2, flat(2)))
    assert [c.name for c in batch.unknown] == ["more"]
    assert batch.unknown[0].first_offset == 101
    assert len(batch) == 3


def test_absent_fields_are_absent() -> None:
    batch = decode((1, flat(1)), (2, b'{"id":2}'), (3, b'{"id":3,"__deleted":"true"}'), want_before=True)
    assert batch.absent["v"].tolist()[:2] == [False, True]
    assert batch.after.to_pylist()[1] == {"id": 2, "v": None}
    assert ops(batch) == "uud"


def test_an_unknown_operation_is_a_bad_record_that_names_it() -> None:
    batch = decode((1, flat(1, __op="c")), (2, flat(2, __op="x")), (3, flat(3, __op="u")))
    assert batch.source_index.tolist() == [0, 2]
    assert "unknown operation 'x'" in batch.bad[0].reason


def test_bad_values_name_their_column_and_their_neighbours_land() -> None:
    batch = decode((1, flat(1)), (2, b'{"id":"two","v":"x"}'), (3, flat(3)), (4, b"[1]"), (5, b'{"id":5,'))
    assert batch.source_index.tolist() == [0, 2]
    assert [(b.index, b.column) for b in batch.bad] == [(1, "id"), (3, None), (4, None)]


def test_an_object_of_another_shape_is_refused_unless_the_form_is_pinned() -> None:
    batch = decode((1, b'{"a":1,"b":2,"c":3}'))
    assert "not a change event" in batch.bad[0].reason
    pinned = decode((1, b'{"a":1,"b":2,"c":3}'), policy=policy_of(events="flattened"))
    assert [c.name for c in pinned.unknown] == ["a", "b", "c"]
    assert "not a change event" in decode((1, flat(1)), policy=policy_of(events="envelope")).bad[0].reason


@pytest.mark.parametrize("pinned", ["auto", "flattened"])
def test_a_row_with_the_fields_of_a_schema_change_is_a_row(pinned: str) -> None:
    """The table lacks a column of it, as one that was added or is left out."""
    columns = (Column("id", "Int64"), Column("source", "Nullable(String)"), Column("ddl", "Nullable(String)"))
    row = json.dumps({"id": 1, "source": None, "ddl": "ALTER", "author": "x"}).encode()
    change = json.dumps(
        {"source": {"connector": "mysql"}, "ts_ms": 1, "databaseName": "d", "schemaName": "s", "ddl": "…"}
    ).encode()
    policy = policy_of(events=pinned)
    batch = Decoder(replacing(columns, ("id",)), policy).decode(chunk_of([b'{"id":1}'] * 2, [row, change]))
    assert batch.after.to_pylist() == [{"id": 1, "source": None, "ddl": b"ALTER"}]
    assert batch.skipped_counts == {Skipped.SCHEMA_CHANGE: 1}


def test_envelopes_and_rows_may_share_a_topic() -> None:
    """The transformation was added to a running connector."""
    block = {"connector": "postgresql", "name": "s", "lsn": 4, "sequence": '["4","4"]', "ts_ms": 1}
    event = json.dumps({"op": "c", "before": None, "after": {"id": 1, "v": "x"}, "source": block}).encode()
    batch = decode((1, event), (1, None), (2, flat(2)), (2, None))
    assert ops(batch) == "cud"
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}


def test_positions_that_are_to_order_and_are_not_there_stop_the_stream() -> None:
    policy = policy_of(version_strategy="source_position")
    with pytest.raises(StreamFailed, match="lack the fields of a position: sequence"):
        decode((1, flat(1, __lsn=5, __deleted="false")), policy=policy)
    added = {"__lsn": 5, "__sequence": '["4","5"]'}
    assert decode((1, flat(1, **added, __deleted="false")), policy=policy).commit.tolist() == [[0, 4]]
    with pytest.raises(StreamFailed, match="lsn, sequence"):
        decode((1, flat(1, **added)), (1, None), policy=policy)


@pytest.mark.parametrize(
    ("mode", "told"),
    [("tombstone", "nulls"), ("rewrite", "marked"), ("rewrite-with-tombstone", "marked"), ("drop", "unseen")],
)
@pytest.mark.parametrize("stream", ["mariadb-json_schema-kc", "postgres-json_plain"])
def test_a_sample_tells_how_deletes_come(stream: str, mode: Any, told: str) -> None:
    recorded = [replace(r, partition=0) for r in topics(stream)[topic_of(stream, "kc")]]
    assert flattened_deletes([as_records(Flatten(mode).apply(recorded))], policy_of()) == told
    assert flattened_deletes([as_records(recorded)], policy_of()) == ""


def test_added_fields_are_columns_of_a_sample_where_that_is_asked_for() -> None:
    told = records((1, flat(1, __op="c", __source_ts_ms=5, __deleted="false"), None))
    plain = sample_schema(told, policy_of())
    asked = sample_schema(told, policy_of(meta_columns=("__op", "__source_ts_ms")))
    assert plain is not None
    assert asked is not None
    assert [f.name for f in plain.fields] == ["id", "v"]
    assert [f.name for f in asked.fields] == ["id", "v", "__op", "__source_ts_ms"]


def test_an_update_without_a_key_is_a_dead_letter_and_inserts_go_on() -> None:
    """Nothing tells which of equal rows it was."""
    table = keyless()
    target = Target.of(table, policy_of())
    names = [c.name for c in table.source_columns]
    values = [json.dumps({**dict.fromkeys(names), names[0]: 1, "__op": op}).encode() for op in "rcud"]
    given = chunk_of([None] * 4, values)
    made = plan(given, target, Decoder(table, policy_of(), want_before=True), State(alone=True), Ports())
    assert [(b.index, "does not state" in b.reason) for b in made.bad] == [(2, True)]
    assert sum(insert.rows.num_rows for insert in made.inserts) == 3


def keyless() -> TargetTable:
    columns = (Column("a", "Nullable(Int64)"), Column("b", "Nullable(String)"))
    system = (Column("_version", "UInt128"), Column("_op", "String"), Column("_sign", "Int8"))
    return TargetTable("d", "t", ENGINES["append without key"], columns + system, ())


POSITIONS = {
    "mariadb": ("file", "source.pos", "row", "source.ts_ms", "name"),
    "postgres": ("lsn", "source.sequence", "source.ts_ms", "source.name"),
}
STREAMS = [
    f"{db}-{kind}" for db in POSITIONS for kind in ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain")
]


def by_partition(recorded: list[Recorded]) -> list[list[Recorded]]:
    return [[r for r in recorded if r.partition == p] for p in sorted({r.partition for r in recorded})]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("where", "mode", "stream"),
    each_value(["fields", "headers"], ["tombstone", "rewrite", "rewrite-with-tombstone"], STREAMS),
)
def test_recorded_streams_flattened_tell_what_their_envelopes_tell(stream: str, mode: Any, where: str) -> None:
    told = ("op", *POSITIONS[stream.split("-")[0]])
    smt = Flatten(mode, add_fields=told if where == "fields" else (), add_headers=told if where == "headers" else ())
    whole_position = mode != "tombstone" or where == "headers"
    compared = 0
    for topic, recorded in topics(stream).items():
        name = topic.rpartition(".")[2]
        if topic.count(".") < 2 or name in ("ac", "nopk", "nopk_d"):
            continue  # its columns change; without keys, flattened updates cannot be applied
        table = table_of(schema_of(typed_stream(stream, name), name), name)
        for part in by_partition(recorded):
            want = Decoder(table, policy_of()).decode(as_records(part))
            if not (left := smt.apply(part)):
                continue
            have = Decoder(table, policy_of()).decode(as_records(left))
            assert not have.bad
            keep = np.flatnonzero(want.op != Op.TRUNCATE)
            assert have.offset.tolist() == want.offset[keep].tolist()
            assert ops(have) == "".join(chr(o) for o in want.op[keep])
            assert have.key.equals(want.key.take(keep))
            assert repr(have.after.to_pylist()) == repr(want.after.take(keep).to_pylist())
            assert have.half.tolist() == want.half[keep].tolist()
            if where == "headers" or mode != "tombstone":
                assert have.source_ts.tolist() == want.source_ts[keep].tolist()
                assert set(have.source_name) == set(want.source_name)
            if whole_position:
                assert have.commit.tolist() == want.commit[keep].tolist()
                assert have.inner.tolist() == want.inner[keep].tolist()
            compared += len(have)
    assert compared


@pytest.mark.parametrize("events", ["auto", "flattened"])
@pytest.mark.parametrize("added", [{}, {"__op": "u"}])
@pytest.mark.parametrize(
    "fields",
    [
        {"id": "1", "source": "s", "ddl": "d"},
        {"id": "1", "source": {"a": 1}, "ddl": "d"},
        {"id": "1", "status": "END", "event_count": "1", "data_collections": "x"},
        {"id": "1", "status": "BEGIN"},
        {"id": "1", "type": "x", "aggregate_type": "y", "additional_data": "z"},
    ],
)
def test_rows_of_a_table_that_has_the_columns_of_a_kind_that_is_set_aside(
    fields: dict[str, Any], added: dict[str, str], events: Literal["auto", "flattened"]
) -> None:
    table = replacing(tuple(Column(name, "String") for name in fields), ("id",))
    value = json.dumps({**fields, **added}).encode()
    batch = Decoder(table, policy_of(events=events)).decode(
        records((b'{"id":"1"}', value, None), (b'{"id":"1"}', value, None))
    )
    assert not batch.bad
    assert not batch.skipped_counts
    assert [row["id"] for row in batch.after.to_pylist()] == [b"1", b"1"]


@pytest.mark.parametrize("header", ["__source_ts_ms", "__ts_ms"])
def test_a_time_beyond_64_bits_in_a_header_is_a_bad_record(header: str) -> None:
    headers: Headers = [(header, str(2**70).encode())]
    batch = Decoder(TABLE, policy_of()).decode(records((1, flat(1), None), (2, None, headers), (3, None, None)))
    assert batch.source_index.tolist() == [0, 2]
    assert [bad.kind for bad in batch.bad] == ["position"]
