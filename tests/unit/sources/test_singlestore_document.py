"""The SingleStore connector's document: its sample events as they stand, and a stream of them that equals a table."""

from typing import Any

import numpy as np
import pytest

from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.table.ddl import create_table
from ch_sink.table.spec import TableSpec
from tests.model.wire import dumps
from tests.support.choose import each_value
from tests.support.documents import (
    FOLDER,
    KEYED,
    OTHER_ID,
    SAMPLE_ID,
    THIRD_ID,
    decode,
    example,
    faults_of,
    in_partitions,
    sample,
    singlestore,
)

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
    records = Records("t", 0, np.arange(1), np.zeros(1, dtype=np.int64), [dumps(key)], [dumps(value)])
    schema = sample_schema(records)
    assert schema is not None
    statement = create_table(schema, TableSpec("db", "example"))
    assert wanted in statement
    assert "ORDER BY (`InternalId`)" in statement
