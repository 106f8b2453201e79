"""``init`` and ``check`` on a MongoDB topic."""

import json
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.collection import draw_collection
from tests.support.hand import Event
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.sink import config_file, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]


def topic_of(kafka: LocalKafka, events: list[Event]) -> str:
    name = fresh_topic("customers")
    kafka.create_topic(name, 1)
    produce(kafka, recorded(name, events))
    return name


def test_init_and_check(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    collection, dialect = draw_collection(77, 70)
    topic = topic_of(mock_kafka, collection.events(dialect))
    config = config_file(
        tmp_path, mock_kafka, clickhouse, topic, "customers", database,
        document={"columns": {"first_tag": "tags.0"}}, init={"engine": "collapsing", "document_type": "JSON"},
    )  # fmt: skip
    made = inside("init", config, "--apply")
    assert made.returncode == 0, made.stderr
    columns = {str(row["name"]): str(row["type"]) for row in client.rows(f"DESCRIBE TABLE {database}.customers")}
    assert list(columns) == ["_id", "first_tag", "document", "_sign", "_version"]
    assert columns["document"] == "JSON"
    found = json.loads(inside("check", config, "--json").stdout)["findings"]
    assert [f["level"] for f in found if f["title"] == "documents"] == ["ok", "warn"]
    assert [f["detail"] for f in found if f["title"] == "source"] == ["mongodb, ordered by kafka_offset"]
    assert {f["title"] for f in found if f["level"] == "fail"} <= {"java"}
    client.command(f"ALTER TABLE {database}.customers DROP COLUMN first_tag")
    found = json.loads(inside("check", config, "--json").stdout)["findings"]
    failed = [f["detail"] for f in found if f["title"] == "documents" and f["level"] == "fail"]
    assert len(failed) == 1
    assert "first_tag" in failed[0]
