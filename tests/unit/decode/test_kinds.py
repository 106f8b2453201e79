"""Kinds of record that are not change of a row: each is skipped and counted, or refused by name."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.model.change import Skipped
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import NO_ROWS, SIGNAL, event, records, row
from tests.support.fixtures import FIXTURES, Recorded, as_records, parse, read_stream, topics
from tests.support.smt import Flatten

TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
KINDS: list[tuple[Any, Skipped]] = [
    *((value, kind) for _, value, kind in NO_ROWS),
    ({"ts_ms": 1, "ts_us": 1000, "ts_ns": 1000000}, Skipped.HEARTBEAT),
    ({"status": "END", "id": "7:1"}, Skipped.TRANSACTION),
    (json.loads(event("d", before=SIGNAL)), Skipped.WATERMARK),
]


@pytest.mark.parametrize(("value", "kind"), KINDS, ids=[f"{kind}-{i}" for i, (_, kind) in enumerate(KINDS)])
@pytest.mark.parametrize("rows", ["envelopes", "flattened"])
def test_a_kind_that_is_no_row_is_counted_and_its_neighbours_land(value: Any, kind: Skipped, rows: str) -> None:
    first, last = (event("c", row(1)), event("u", row(2)))
    if rows == "flattened":
        first, last = json.dumps(row(1)).encode(), json.dumps(row(2)).encode()
    text = json.dumps(value).encode()
    batch = Decoder(TABLE, policy_of()).decode(records((1, first), (b'{"id":"6d5f-open"}', text), (2, last)))
    assert batch.skipped_counts == {kind: 1}
    assert batch.source_index.tolist() == [0, 2]
    assert not batch.bad
    assert not batch.unknown


@pytest.mark.parametrize("added", [{"__op": "c"}, {"__deleted": "false"}, {"__op": "d", "__deleted": "true"}])
@pytest.mark.parametrize("key_type", ["Int64", "String"])
def test_flattened_signals_are_set_aside_whatever_was_added(added: dict[str, str], key_type: str) -> None:
    table = replacing((Column("id", key_type), Column("v", "Nullable(String)")), ("id",))
    rows = [{"id": 1 if key_type == "Int64" else "1", "v": "x", **added, "__deleted": "false"}, {**SIGNAL, **added}]
    keys = [json.dumps({"id": r["id"]}).encode() for r in rows]
    batch = Decoder(table, policy_of()).decode(
        records(*[(key, json.dumps(r).encode()) for key, r in zip(keys, rows, strict=True)])
    )
    assert batch.skipped_counts == {Skipped.WATERMARK: 1}
    assert batch.source_index.tolist() == [0]
    assert not batch.bad
    assert not batch.unknown


def test_a_type_that_is_no_text_is_no_signal() -> None:
    odd = {"id": 1, "type": ["x"], "data": {}}
    batch = Decoder(TABLE, policy_of()).decode(records((1, json.dumps(odd).encode()), (2, event("c", row(2)))))
    assert [bad.index for bad in batch.bad] == [0]
    assert batch.source_index.tolist() == [1]


def test_the_signal_table_itself_may_be_the_target() -> None:
    columns = (Column("id", "String"), Column("type", "String"), Column("data", "Nullable(String)"))
    batch = Decoder(replacing(columns, ("id",)), policy_of()).decode(
        records((b'{"id":"6d5f-open"}', event("c", SIGNAL)))
    )
    assert batch.after.to_pylist() == [{"id": b"6d5f-open", "type": b"snapshot-window-open", "data": b"{}"}]
    assert not batch.skipped_counts


@pytest.mark.long
def test_recorded_signals_are_set_aside() -> None:
    for stream in ("mariadb-busy-json_plain", "postgres-busy-json_plain"):
        topic = next(t for t in topics(stream) if t.endswith("dbz_signal_jp"))
        recorded = [r for r in topics(stream)[topic] if r.partition == 0 and r.value is not None]
        batch = Decoder(TABLE, policy_of()).decode(as_records(recorded))
        assert not batch.bad
        assert batch.skipped_counts == {Skipped.WATERMARK: len(recorded)}


@pytest.mark.parametrize("op", ["x", "create", "", "C", "é"])
def test_an_unknown_operation_is_named(op: str) -> None:
    batch = Decoder(TABLE, policy_of()).decode(records((1, event(op, row(1))), (2, event("c", row(2)))))
    assert batch.source_index.tolist() == [1]
    assert len(batch.bad) == 1
    assert f"operation {op!r}" in batch.bad[0].reason or (not op and "'op'" in batch.bad[0].reason)


FIELDS = "op,table,lsn,pos,row,file,name,source.ts_ms,source.sequence,transaction.id,ts_ms,total_order,db:base"
HEADERS = "op,name,source.lsn,source.sequence,file,pos,row,source.ts_ms,db"
MODES = {
    "tombstone": Flatten(add_headers=HEADERS.split(",")),
    "tombstone-bare": Flatten(),
    "rewrite": Flatten("rewrite", add_fields=FIELDS.split(",")),
    "rewrite-with-tombstone": Flatten("rewrite-with-tombstone", add_headers=("op",)),
    "drop": Flatten("drop"),
}
CASES = [(db, mode, "plain") for db in ("mariadb", "postgres") for mode in MODES]
CASES += [(db, mode, "schema") for db in ("mariadb", "postgres") for mode in ("tombstone", "rewrite")]


def real(db: str, mode: str, form: str) -> dict[tuple[int, int], Recorded]:
    path = FIXTURES / "flattened" / f"{db}-kc-{mode}-{form}.jsonl"
    found = [parse(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(r.partition, r.offset): r for r in found}


def loaded(value: bytes | None, *, plain: bool = False) -> Any:
    found = None if value is None else json.loads(value)
    return found["payload"] if plain and found is not None else found


@pytest.mark.parametrize(("db", "mode", "form"), CASES)
def test_records_are_those_that_the_real_one_made(db: str, mode: str, form: str) -> None:
    want = real(db, mode, form)
    mine = {(r.partition, r.offset): r for r in MODES[mode].apply(read_stream(f"{db}-json_schema-kc"))}
    assert want.keys() == (mine.keys() if form == "plain" else {place for place in mine if place[0] == 0})
    for place, record in want.items():
        assert loaded(record.value) == loaded(mine[place].value, plain=form == "plain")
        told = [(name, value) for name, value in mine[place].headers if not name.startswith("__debezium.context")]
        assert list(record.headers) == told


@pytest.mark.parametrize("db", ["mariadb", "postgres"])
def test_a_delete_is_the_null_of_its_schema(db: str) -> None:
    for form in ("plain", "schema"):
        values = [r.value for r in real(db, "tombstone", form).values()]
        assert None not in values
        assert any(value == b"null" or (value or b"").endswith(b'"payload":null}') for value in values)
