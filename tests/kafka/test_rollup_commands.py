"""Rollups as a user has them: `init`, a job, `check`, `verify --json`, and one that is added later."""

import json
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file, inside, run_inline

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]
STREAM = "mariadb-json_schema-kc"
BY_K = 'rollups:\n  by_k: {by: {k: k}, sum: {ids: id}, avg: {mean: id}, count: rows, where: "id > 0"}\n'
BY_V = '  by_v: {by: {v: "substring(v, 1, 1)"}, count: rows}\n'


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that differs is looked at again without waiting long."""
    monkeypatch.setattr("ch_sink.trust.rollups._PAUSE", 0.02)


@pytest.mark.long
def test_a_rollup_is_made_kept_compared_and_joined_by_another(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    topic = fresh_topic("kc")
    mock_kafka.create_topic(topic, 3)
    produce(mock_kafka, topics(STREAM)[topic_of(STREAM, "kc")], topic)
    config = config_file(tmp_path, mock_kafka, clickhouse, topic, "kc", database)
    plain = config.read_text()

    def with_rollups(text: str) -> None:
        config.write_text(f"{plain}\nengine: collapsing\n{text}")

    def verify() -> tuple[int, list[dict[str, object]]]:
        done = inside("verify", config, "--json")
        assert done.stdout, done.stderr
        [stream] = json.loads(done.stdout)["streams"]
        return done.returncode, [{k: r[k] for k in ("rollup", "groups", "different")} for r in stream["rollups"]]

    with_rollups("rollups:\n  by_k: {by: {k: k}, sum: {ids: nothing}}\n")
    refused = inside("init", config, "--apply")
    assert refused.returncode == 1
    assert "rollups.by_k.sum.ids: the server refuses nothing" in refused.stderr
    with_rollups(BY_K)
    done = inside("init", config, "--apply")
    assert done.returncode == 0, done.stderr
    assert "created    table by_k" in done.stdout
    assert client.rows(f"SELECT * FROM {database}.by_k_current") == []
    run_inline(config)
    same = (
        f"SELECT k, sum(id) AS ids, avg(id) AS mean, count() AS rows FROM {database}.kc_current GROUP BY k ORDER BY k"
    )
    assert client.rows(f"SELECT * FROM {database}.by_k_current ORDER BY k") == client.rows(same)
    groups = len(client.rows(same))
    assert verify() == (0, [{"rollup": "by_k", "groups": groups, "different": 0}])
    with_rollups(BY_K + BY_V)
    done = inside("init", config, "--apply")
    assert "rollup by_v: the job fills it" in done.stderr + done.stdout
    checked = inside("check", config)
    assert "by_v: the job fills it from the table" in checked.stdout
    assert verify()[0] == 1
    run_inline(config)
    assert [found["different"] for found in verify()[1]] == [0, 0]
    client.command(f"INSERT INTO {database}.by_v (v, _rows) VALUES ('?', 1)")
    assert verify()[0] == 1
    assert "v=?, _rows=1" in inside("verify", config).stdout
    assert inside("repair", config, "--apply").returncode == 0
    assert verify()[0] == 0
    with_rollups("rollups:\n  kc_current: {by: {k: k}, count: n}\n")
    assert "which is taken" in inside("check", config).stderr
