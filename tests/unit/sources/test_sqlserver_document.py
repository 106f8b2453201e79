"""The SQL Server connector's document: its sample events as they stand, and a stream of them that equals a table."""

from typing import Any

import pytest

from ch_sink.model.change import Skipped
from tests.model.shapes import Layout
from tests.support.choose import each_value
from tests.support.documents import KEYED, decode, faults_of, sample
from tests.support.sqlserver_stream import BY_NAME, CUSTOMERS, SQLSERVER_TRUTH, Encoding, sqlserver

SEEDS = range(3)


@pytest.mark.parametrize(
    ("engine", "layout", "encoding", "headers"),
    each_value(KEYED, [CUSTOMERS, BY_NAME], ["schema", "plain"], [True, False]),
)
def test_sqlserver_stream_equals_its_table(engine: str, layout: Layout, encoding: Encoding, headers: bool) -> None:
    stream = sqlserver(layout, encoding, headers=headers)
    for seed in SEEDS:
        history = stream.history(SQLSERVER_TRUTH, partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed


@pytest.mark.parametrize(
    ("engine", "serials"), each_value(["replacing", "versioned"], [("1", "2"), (1, 1), (None, None), (2, 1)])
)
def test_sqlserver_serial_numbers_order_nothing(engine: str, serials: tuple[Any, Any]) -> None:
    """Numbers, texts, ties, none, and (``data.query.mode=direct``) against the order of sending."""
    stream = sqlserver(BY_NAME, "plain", headers=False, serials=serials)
    for seed in SEEDS:
        history = stream.history(SQLSERVER_TRUTH, partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed


def test_sqlserver_samples_are_read_as_they_stand() -> None:
    key = sample("sqlserver", "key")
    pairs = [(key, sample("sqlserver", name)) for name in ("create", "update", "delete")]
    extra = [
        (sample("sqlserver", "schema_change_key"), sample("sqlserver", "schema_change")),
        ({"id": "x"}, sample("sqlserver", "transaction_begin")),
        ({"id": "x"}, sample("sqlserver", "transaction_end")),
        (key, None),
    ]
    batch = decode(CUSTOMERS, *pairs, *extra)
    assert batch.bad == []
    assert bytes(batch.op).decode() == "cud"
    assert batch.skipped_counts == {Skipped.SCHEMA_CHANGE: 1, Skipped.TRANSACTION: 2, Skipped.TOMBSTONE: 1}
    assert batch.source_ts.tolist() == [1559729468470, 1559729995937, 1559730445243]
    assert batch.commit.tolist() == [[0, 0x27_0000_0758_0005], [0, 0x27_0000_0AC0_0007], [0, 0x27_0000_0DB0_0007]]
    assert batch.after.to_pylist()[1]["email"] == b"noreply@example.org"
    assert batch.before.to_pylist()[2]["email"] == b"noreply@example.org"
