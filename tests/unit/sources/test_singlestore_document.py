"""The SingleStore connector's document: its sample events as they stand, and a stream of them that equals a table."""

from typing import Any

import numpy as np
import pytest

from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.table.ddl import create_table
from ch_sink.table.spec import TableSpec
from tests.model.shapes import Column, Layout, TableShape
from tests.model.wire import dumps
from tests.support.documents import FOLDER, KEYED, Stream, decode, faults_of, sample

SEEDS = range(6)


def test_every_sample_can_be_read() -> None:
    names = sorted(f"{p.parent.name}/{p.stem}" for p in FOLDER.glob("*/*.json"))
    assert len(names) >= 14
    for name in names:
        assert isinstance(sample(*name.split("/")), dict), name


def example(key: str, clickhouse: str) -> Layout:
    """``CREATE TABLE example (a INT)``: no primary key, so that the row's internal id is the key."""
    columns = (Column(key, "string" if clickhouse == "String" else "int64", False, clickhouse),)
    return Layout("example", TableShape("example", (*columns, Column("a", "int32", False, "Int32")), (key,)), (key,))


def in_partitions(layout: Layout) -> Layout:
    """Partitioned by a column outside the key: deletes and updates have to find the row's old place."""
    return Layout("example by a", layout.table, layout.order_by, "a % 2")


SAMPLE_ID = "100000000000000600000007"
OTHER_ID, THIRD_ID = "100000000000000600000008", "100000000000000600000009"


def singlestore(layout: Layout, ids: tuple[Any, Any, Any], name: str, *, with_id: bool) -> Stream:
    """Snapshot told as creates, the three samples, other rows, a snapshot that runs again after a stale offset."""
    stream = Stream(layout, "singlestore")

    def key(of: Any) -> dict[str, Any]:
        document = sample("singlestore", "key")
        field = {**document["schema"]["fields"][0], "field": name}
        return {"schema": {**document["schema"], "fields": [field]}, "payload": {name: of}}

    def event(kind: str, of: Any, mark: Any, **after: int) -> dict[str, Any]:
        payload = dict(sample("singlestore", kind)["payload"])
        payload["source"] = payload["source"] | {"snapshot": mark}
        if after:
            payload["after"] = after | ({name: of} if with_id else {})
        return {"schema": None, "payload": payload}

    one, two, three = ids
    stream.send(key(two), event("create", two, "true", a=5))
    stream.send(key(three), event("create", three, "true", a=6))
    stream.send(key(one), event("create", one, "true", a=33))
    stream.send(key(one), event("update", one, "false", a=22))
    stream.send(key(two), event("update", two, "false", a=8))
    stream.send(key(three), event("delete", three, "false"))
    stream.send(key(three), None)
    # The connector's offset became stale: its snapshot runs again, rows that changed meanwhile included.
    stream.send(key(one), event("create", one, "true", a=22))
    stream.send(key(two), event("create", two, True, a=9))
    stream.send(key(one), event("delete", one, False))
    stream.send(key(one), None)
    return stream


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("with_id", [False, True], ids=["key alone", "populate.internal.id"])
@pytest.mark.parametrize("numeric", [False, True], ids=["text", "int64"])
@pytest.mark.parametrize("engine", KEYED)
def test_singlestore_stream_equals_its_table(engine: str, numeric: bool, with_id: bool, partitioned: bool) -> None:
    name = "internalId" if numeric else "InternalId"
    ids = (1125899906842624, 1125899906842625, 2**62) if numeric else (SAMPLE_ID, OTHER_ID, THIRD_ID)
    layout = example(name, "Int64" if numeric else "String")
    if partitioned:
        layout = in_partitions(layout)
    stream = singlestore(layout, ids, name, with_id=with_id)
    for seed in SEEDS:
        history = stream.history([{name: ids[1], "a": 9}], partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed


def test_singlestore_samples_are_read_as_they_stand() -> None:
    key = sample("singlestore", "key")
    layout = example("InternalId", "String")
    batch = decode(layout, *((key, sample("singlestore", name)) for name in ("create", "update", "delete")))
    assert batch.bad == []
    assert bytes(batch.op).decode() == "cud"
    assert batch.key.to_pylist() == [{"InternalId": SAMPLE_ID.encode()}] * 3
    assert batch.snapshot.tolist() == [True] * 3
    assert [row["a"] for row in batch.after.to_pylist()] == [33, 22, None]
    assert not batch.has_before.any()
    assert [low for _, low in batch.inner.tolist()] == [0x46049, 0x4C17E, 0x53179]


@pytest.mark.parametrize(("payload", "wanted"), [(SAMPLE_ID, "`InternalId` String"), (7, "`InternalId` Int64")])
def test_init_makes_the_internal_id_a_column_of_what_is_written(payload: Any, wanted: str) -> None:
    """The key's schema says int64; the sample has 24 digits of text."""
    key = sample("singlestore", "key") | {"payload": {"InternalId": payload}}
    value = sample("singlestore", "create")
    records = Records("t", 0, np.arange(1), np.zeros(1, dtype=np.int64), [dumps(key)], [dumps(value)])
    schema = sample_schema(records)
    assert schema is not None
    statement = create_table(schema, TableSpec("db", "example"))
    assert wanted in statement
    assert "ORDER BY (`InternalId`)" in statement
