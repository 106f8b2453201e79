"""What streams cost in file descriptors before and after their first batch: clients are shared, or opened when used."""

import os
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client, execute
from ch_sink.config import load
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.stream.coordinator import Coordinator
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from tests.support.sink import config_file
from tests.support.state_tables import create_statement

pytestmark = [pytest.mark.integration]

STREAMS = 8


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_streams_open_nothing_of_their_own_before_their_first_batch(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    columns = "id Int64, _version UInt128, _is_deleted UInt8"
    client.command(
        f"CREATE TABLE {database}.t ({columns}) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    names = ("ledger", "dead_letters", "handover", "pending")
    execute(client, [create_statement(name, database, f"ch_sink_{name}") for name in names])
    topics, made, opened = SharedTopics(), list[Coordinator](), list[int]()
    for number in range(STREAMS):
        topic = f"{database}.{number}"
        mock_kafka.create_topic(topic, 1)
        config = load(config_file(tmp_path, mock_kafka, clickhouse, topic, "t", database, stream=f"s{number}"))
        made.append(Coordinator(stream_settings(config), stream_ports(config, topics)))
        made[-1].open()
        opened.append(descriptors())
    assert opened[-1] - opened[0] <= 2
    for number, coordinator in enumerate(made):
        coordinator.ports.group.commit(f"{database}.{number}", {0: 0})
    topics.close()
    assert descriptors() <= opened[0] + 2, "offsets of all groups were committed by one client"
    for coordinator in made:
        coordinator.close()
