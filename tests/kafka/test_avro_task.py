"""An Avro topic without Spark: init and check by its schemas, and the tasks that carry its ranges out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.config import load
from ch_sink.discovery.wiring import topic_offsets
from ch_sink.errors import RegistryRefused
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.order import State
from ch_sink.stream.tasks import RangeDone, RangeTask
from ch_sink.wiring.worker import run_configured
from tests.support.fixtures import registry_schemas, topic_of, topics
from tests.support.kafka import produce
from tests.support.recorded import equal
from tests.support.registry_server import registry_server
from tests.support.sink import config_file, inside

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STREAM, TABLE = "postgres-avro", "kc"
USER = "sink:hunter2"


def run_all(config: Path, client: Client, choices: Sequence[str]) -> list[RangeDone]:
    """Every partition from its start to its end."""
    settings = load(config, choices)
    table = detect(client, settings.clickhouse.database, TABLE, settings.policy())
    with topic_offsets(settings) as offsets:
        topic = offsets.state(settings.kafka.topic)
    config_json, stream = settings.to_task_json(), settings.stream_name
    tasks = [RangeTask(stream, topic.topic, "id", p, table, 0, topic.high[p], State()) for p in topic.low]
    done = [run_configured(config_json, task) for task in tasks]
    assert all(isinstance(one, RangeDone) for one in done)
    return done  # type: ignore[return-value]


def test_init_check_and_the_tasks(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    topic = f"{database}.{TABLE}"
    mock_kafka.create_topic(topic, 3)
    records = topics(STREAM)[topic_of(STREAM, TABLE)]
    unknown = replace(records[0], value=b"\0\0\0\x03\xe7\1\2\3", headers=())
    produce(mock_kafka, [*records[:9], unknown, *records[9:]], topic)
    config = config_file(tmp_path, mock_kafka, clickhouse, topic, TABLE, database)
    without = inside("init", config, "--apply")
    assert without.returncode == 1
    assert "schema.registry.url" in without.stderr
    with registry_server(registry_schemas("postgres"), user=USER) as server:
        address = f"kafka.schema.registry.url={server.url}"
        secret = {"CH_SINK__KAFKA__SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": USER}
        made = inside("init", config, "--apply", "--set", address, **secret)
        assert made.returncode == 0, made.stderr
        checked = inside("check", config, "--json", "--set", address, **secret)
        levels = {f["title"]: f["level"] for f in json.loads(checked.stdout)["findings"]}
        assert levels["change events"] == levels["types"] == levels["columns"] == "ok"
        refused = run_all(config, client, [address])
        assert {type(r.failure) for r in refused if r.failure} == {RegistryRefused}
        assert sum(r.counts.rows + r.counts.dead_letters for r in refused) == 0
        done = run_all(config, client, [address, f"kafka.schema.registry.basic.auth.user.info={USER}"])
    assert [r.failure for r in done] == [None] * 3
    assert sum(r.counts.dead_letters for r in done) == 1
    assert equal(client, database, "postgres", STREAM, TABLE) == []
    [letter] = client.rows(f"SELECT reason FROM {database}.ch_sink_dead_letters FINAL")
    assert "no schema with id 999" in letter["reason"]
    told = [f"{r.failure!r} {vars(r.failure)}" for r in refused if r.failure]
    for text in (*told, made.stdout, made.stderr, checked.stdout, checked.stderr, without.stderr):
        assert "hunter2" not in text
