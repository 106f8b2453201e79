"""Real Kafka and real ClickHouse behind the ports of a stream's coordinator, and its member of a job's roster."""

import math
import threading
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ch_sink.clickhouse import (
    ClickHouseSettings,
    ClickHouseStreamStates,
    ClickHouseTableAdmin,
    Client,
    Retry,
)
from ch_sink.config import Config
from ch_sink.discovery.wiring import client_of, kafka_settings, ledger_of, open_letters, pending_of, states_of
from ch_sink.kafka import GroupCommits, GroupOffsets, KafkaSettings, TopicWatermarks
from ch_sink.model.values import TopicState
from ch_sink.stream.batch_plan import rewind
from ch_sink.stream.error_limits import ErrorLimits
from ch_sink.stream.pace import Patience
from ch_sink.stream.ports import StreamPorts, StreamSettings
from ch_sink.stream.standing import Member

_TIMEOUT = 30.0
"""Of one exchange of states, in seconds. A failed one is not repeated: the next comes within a second."""


def stream_settings(config: Config) -> StreamSettings:
    """The part of the configuration that the coordinator needs."""
    return StreamSettings(
        config.stream_name,
        config.kafka.topic,
        config.policy(),
        config.chunk_offsets,
        config.chunk_bytes,
        config.start,
        config.on_data_loss,
        ErrorLimits(config.errors.max, config.errors.max_rate),
        config.source_table,
    )


def stream_ports(config: Config, topics: "SharedTopics") -> StreamPorts:
    """The coordinator's ports; connects to ClickHouse. Raises ClickHouseError."""
    client, kafka = client_of(config), kafka_settings(config)
    return StreamPorts(
        ledger_of(config, client),
        _table_admin(config, client),
        topics.watermarks(kafka),
        pending_of(config, client),
        GroupOffsets(topics.commits(kafka), config.consumer_group),
        lambda: sum(open_letters(config, client).values()),
    )


def _table_admin(config: Config, client: Client) -> ClickHouseTableAdmin:
    place = config.clickhouse
    return ClickHouseTableAdmin(
        client,
        place.database,
        place.table,
        config.policy(),
        place.cluster,
        config.init.types(),
        config.rollup_choices(),
    )


def renew_views(config: Config) -> None:
    """Recreate the table's views if it was altered by hand since. Raises ClickHouseError, TableError."""
    admin = _table_admin(config, client_of(config))
    admin.carry_out(admin.detect(), (), ())


def rewind_stream(config: Config) -> None:
    """Let the stream read its topic again, into the same table. Raises ChSinkError, also if a job has it now."""
    with closing(SharedTopics()) as topics:
        ports = stream_ports(config, topics)
        ports.ledger.claim(f"rewind-{uuid.uuid4().hex[:12]}")
        try:
            rewind(ports.ledger, ports.topics.state(config.kafka.topic))
        finally:
            ports.ledger.release()


@dataclass(slots=True)
class SharedTopics:
    """One client for each broker and its settings, however many streams ask. May be used by several threads."""

    _clients: dict[KafkaSettings, TopicWatermarks] = field(default_factory=dict)
    _commits: dict[KafkaSettings, GroupCommits] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watermarks(self, kafka: KafkaSettings) -> TopicWatermarks:
        """The client for these settings."""
        with self._lock:
            return self._clients.setdefault(kafka, TopicWatermarks(kafka))

    def commits(self, kafka: KafkaSettings) -> GroupCommits:
        """Commits the offsets of consumer groups with these settings."""
        with self._lock:
            return self._commits.setdefault(kafka, GroupCommits(kafka))

    def state(self, kafka: KafkaSettings, topic: str) -> TopicState:
        """Id, partitions and watermarks of a topic. Raises KafkaError."""
        return self.watermarks(kafka).state(topic)

    def close(self) -> None:
        """Leave the brokers; the next question opens a client again."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            for commits in self._commits.values():
                commits.close()


def members_of(configs: Sequence[Config]) -> list[Member]:
    """The streams of a job with their states. Connects to nothing yet."""
    ledgers: dict[ClickHouseStreamStates, ClickHouseStreamStates] = {}
    made = []
    for config in configs:
        settings = replace(ClickHouseSettings(**config.clickhouse.connection()), retry=Retry(1), timeout=_TIMEOUT)
        place = states_of(config, settings)
        patience = Patience(math.inf if config.retry_for is None else config.retry_for)
        made.append(Member(config.stream_name, ledgers.setdefault(place, place), config.fingerprint(), patience))
    return made
