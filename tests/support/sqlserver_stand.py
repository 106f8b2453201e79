"""A stream of SQL Server's events beside the stand-in of its database, as a user's file names both."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import Recorded
from tests.support.inline_job import run_inline
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file, inside
from tests.support.sqlserver_database import Database
from tests.support.tds_server import TdsServer

__all__ = ["Sent", "SqlServerStand", "sqlserver_stand"]

Sent = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value, headers."""


@dataclass
class SqlServerStand:
    """A stream, its table, and the database that it comes from."""

    folder: Path
    kafka: LocalKafka
    clickhouse: EmbeddedClickHouse
    client: Client
    name: str
    source: Database
    server: TdsServer
    config: Path = field(init=False)
    topic: str = ""

    def prepare(self, table: str, events: Sequence[Sent] = ()) -> None:
        """The topic, the file and what `init` makes; nothing is read yet."""
        self.topic = topic = f"{fresh_topic('server')}.shop.dbo.{table}"
        self.kafka.create_topic(topic, 1)
        produce(
            self.kafka,
            [Recorded(topic, 0, i, 1_700_000_000_000 + i, k, v, tuple(h)) for i, (k, v, h) in enumerate(events)],
            topic,
        )
        (self.folder / "password").write_text(self.server.password)
        self.config = config_file(
            self.folder, self.kafka, self.clickhouse, topic, table, self.name,
            source={
                "url": f"sqlserver://debezium@127.0.0.1:{self.server.port}/shop",
                "password_file": str(self.folder / "password"),
            },
        )  # fmt: skip
        made = inside("init", self.config, "--apply")
        assert made.returncode == 0, made.stderr

    def stream(self, table: str, events: Sequence[Sent]) -> None:
        self.prepare(table, events)
        run_inline(self.config)

    def send(self, key: Any, value: Any) -> None:
        """One change more, which the stream applies."""
        record = Recorded(self.topic, 0, 0, 1, json.dumps(key).encode(), json.dumps(value).encode(), ())
        produce(self.kafka, [record], self.topic)
        run_inline(self.config)

    def verify(self, *more: str) -> tuple[int, dict[str, Any]]:
        done = inside("verify", self.config, "--json", "--patience", "0", *more)
        assert done.stdout, done.stderr
        assert self.server.password not in done.stdout + done.stderr
        [stream] = json.loads(done.stdout)["streams"]
        return done.returncode, stream


@pytest.fixture
def sqlserver_stand(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Iterator[SqlServerStand]:
    source = Database()
    with closing(source.serve()) as server:
        yield SqlServerStand(tmp_path, mock_kafka, clickhouse, client, database, source, server)
