"""Streams of Oracle (LOB columns, key changes) and SingleStore (its documented events) that equal their tables."""

from typing import Any

import pytest

from ch_sink.discovery.sample import sample_schema
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import create_table
from ch_sink.table.spec import TableSpec
from tests.model.shapes import Layout
from tests.model.wire import dumps
from tests.support.choose import each_value
from tests.support.documents import (
    FOLDER,
    KEYED,
    LAYOUTS,
    OTHER_ID,
    SAMPLE_ID,
    THIRD_ID,
    Orders,
    decode,
    example,
    faults_of,
    in_partitions,
    row,
    rows_of,
    run_of,
    sample,
    singlestore,
)
from tests.support.event import chunk_of
from tests.support.hand import PLACEHOLDER


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "layout"), each_value(KEYED, LAYOUTS))
def test_snapshot_lobs_moves_and_key_changes_equal_the_table(engine: str, layout: Layout) -> None:
    orders = Orders(layout)
    orders.send("r", 1, None, row(1, "new", "first notes"), 100, None)
    orders.send("r", 2, None, row(2, "new", None), 100, None)
    orders.send("u", 1, row(1, "new", PLACEHOLDER), row(1, "paid", PLACEHOLDER), 105, 130)
    # Made before that change, committed after it: ``scn`` is not an order.
    orders.send("u", 1, row(1, "paid", PLACEHOLDER), row(1, "sent", PLACEHOLDER, 1), 103, 140)
    orders.delete(2, row(2, "new", PLACEHOLDER), 150, 151, newkey={"ID": 3})
    orders.send("c", 3, None, row(3, "new", PLACEHOLDER), 150, 151, oldkey={"ID": 2})
    orders.send("u", 3, row(3, "new", PLACEHOLDER), row(3, "new", "at last"), 160, 161)
    # Two keys exchanged in one statement.
    for old, new, status, region in ((1, 3, "sent", 1), (3, 1, "new", 0)):
        orders.delete(old, row(old, status, PLACEHOLDER, region), 170 + old, 180, newkey={"ID": new})
        orders.send("c", new, None, row(new, status, PLACEHOLDER, region), 170 + old, 180, oldkey={"ID": old})
    truth = [row(3, "sent", "first notes", 1), row(1, "new", "at last")]
    for seed in range(10):
        assert faults_of(orders.stream.history(truth, 1 + seed % 3), engine, seed) == [], seed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["replacing", "versioned"])
def test_an_inserted_row_never_takes_the_lob_of_the_deleted_one_before(engine: str) -> None:
    """Without ``lob.enabled`` an insert has the placeholder: a dead letter, or null where that is chosen."""
    orders = Orders(LAYOUTS[0])
    orders.send("r", 1, None, row(1, "new", "secret of another row"), 100, None)
    orders.delete(1, row(1, "new", PLACEHOLDER), 110, 111)
    orders.send("c", 1, None, row(1, "again", PLACEHOLDER), 120, 121)
    history = orders.stream.history([], 1)
    for seed in range(10):
        run = run_of(history, engine, seed, policy_of())
        assert rows_of(run) == []
        assert len(run.letters.stored) == 1
        run = run_of(history, engine, seed, policy_of(on_unresolved="null"))
        assert rows_of(run) == [row(1, "again", None)]


SEEDS = range(3)


def test_every_sample_can_be_read() -> None:
    names = sorted(f"{p.parent.name}/{p.stem}" for p in FOLDER.glob("*/*.json"))
    assert len(names) >= 14
    for name in names:
        assert isinstance(sample(*name.split("/")), dict), name


@pytest.mark.parametrize(
    ("engine", "numeric", "with_id", "partitioned"), each_value(KEYED, [False, True], [False, True], [False, True])
)
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
    assert [row["a"] for row in batch.after.to_pylist()] == [33, 22, None]
    assert not batch.has_before.any()
    assert [low for _, low in batch.inner.tolist()] == [0x46049, 0x4C17E, 0x53179]


@pytest.mark.parametrize(("payload", "wanted"), [(SAMPLE_ID, "`InternalId` String"), (7, "`InternalId` Int64")])
def test_init_makes_the_internal_id_a_column_of_what_is_written(payload: Any, wanted: str) -> None:
    """The key's schema says int64; the sample has 24 digits of text."""
    key = sample("singlestore", "key") | {"payload": {"InternalId": payload}}
    value = sample("singlestore", "create")
    records = chunk_of([dumps(key)], [dumps(value)])
    schema = sample_schema(records)
    assert schema is not None
    statement = create_table(schema, TableSpec("db", "example"))
    assert wanted in statement
    assert "ORDER BY (`InternalId`)" in statement
