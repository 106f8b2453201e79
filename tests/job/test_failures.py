"""Streams of one job that fail: each is reported in a line, and the JVM says nothing."""

from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.policy import policy_of
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import produce
from tests.support.recorded import at_the_snapshot
from tests.support.sink import command, config_file
from tests.support.stream import make_table

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def lacks_columns(
    folder: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str, source: str
) -> Path:
    """A stream whose table lacks columns that the source gets, and that may not add them."""
    stream, place = f"{source}-json_schema", f"{database}_{source}"
    client.command(f"CREATE DATABASE {place}")
    kafka.create_topic(f"{place}.ac", 3)
    make_table(client, place, "ac", at_the_snapshot(stream, "ac"), policy=policy_of())
    produce(kafka, topics(stream)[topic_of(stream, "ac")], f"{place}.ac")
    (folder / source).mkdir()
    return config_file(folder / source, kafka, clickhouse, f"{place}.ac", "ac", place, evolve="fail", stream=source)


def test_every_stream_that_failed_is_reported_in_a_few_lines(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    configs = [
        lacks_columns(tmp_path, kafka, clickhouse, client, database, source) for source in ("mariadb", "postgres")
    ]
    done = command("run", *configs, "--once")
    assert done.returncode == 1
    for source in ("mariadb", "postgres"):
        assert f"ERROR   {source} stopped: the change event at offset" in done.stderr, done.stderr
    assert "Add them to the table" in done.stderr
    assert "error: 2 of 2 streams stopped: " in done.stderr
    assert "Exception" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) < 12, done.stderr
