"""Waiting changes of a stream with masked columns: their content is in Kafka only."""

from pathlib import Path

import pytest

from ch_sink.clickhouse import ClickHousePending, Client, execute
from ch_sink.config import load
from ch_sink.errors import DataLoss
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.order import State
from ch_sink.ports import AppliedSwap, PendingRecord
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from ch_sink.wiring.tasks import batch_decoder, task_ports
from tests.support.fixtures import Recorded
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file
from tests.support.state_tables import create_statement

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

SECRET = b'{"after": {"id": 2, "name": "Ada Lovelace"}}'
HEADERS = (("__debezium.oldkey", b'{"name": "Ada Lovelace"}'),)


def test_a_change_that_waits_is_stored_without_content_and_read_again(
    tmp_path: Path,
    mock_kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
) -> None:
    names = ("ledger", "dead_letters", "handover", "pending")
    execute(client, [create_statement(name, database, f"ch_sink_{name}") for name in names])
    topic = fresh_topic("people")
    mock_kafka.create_topic(topic, 1)
    produce(mock_kafka, [Recorded(topic, 0, 0, 1, b"k0", b"{}", ()), Recorded(topic, 0, 1, 1, b"k1", SECRET, HEADERS)])
    path = config_file(
        tmp_path, mock_kafka, clickhouse, topic, "people", database,
        columns={"mask": {"name": "redact"}},
    )  # fmt: skip
    config = load(path)
    columns = (Column("id", "Int64"), Column("name", "Nullable(String)"), Column("_version", "UInt128"))
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", version_column="_version")
    table = TargetTable(database, "people", engine, columns, sorting_key=("id",))
    task = ReleaseTask(config.stream_name, topic, "topic", 0, table, State())
    pending = task_ports(config, task, lambda now, before: batch_decoder(config, now, before)).sink.stores.pending
    assert pending is not None
    waiting = PendingRecord(1, 1, b"k1", SECRET, HEADERS, 0, 7, 1.0)
    pending.put("topic", 0, [waiting, PendingRecord(0, 1, b"k0", None, (), 0, 7, 1.0, AppliedSwap(5))], "t")

    stored = client.rows(f"SELECT * FROM {database}.ch_sink_pending WHERE offset = 1")
    assert "Ada" not in str(stored)
    swap, found = pending.open("topic", 0)
    assert swap.swap == AppliedSwap(5)
    assert (found.value, tuple(found.headers), found.commit) == (SECRET, HEADERS, 7)
    raw = ClickHousePending(client, database, "ch_sink_pending", config.stream_name)
    raw.put("topic", 0, [PendingRecord(5, 1, b"k5", b"", (), 0, 9, 1.0)], "t")
    with pytest.raises(DataLoss, match="no longer holds it"):
        pending.open("topic", 0)
    pending.resolve("topic", 0, [1, 5])
    assert [r.offset for r in pending.open("topic", 0)] == [0]
