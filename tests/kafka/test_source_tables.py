"""A stream of one source table of its topic, from ``init`` on: the table's whole name is required, and stated."""

import re
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.config import load
from ch_sink.discovery.wiring import ledger_of
from ch_sink.errors import StreamFailed
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.stream.claims import forget
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file, inside, run_inline

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]
STREAM = "mariadb-json_schema-kc"


@pytest.mark.long
def test_a_stream_goes_on_under_the_whole_name_that_every_command_states(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    recorded = topics(STREAM)[topic_of(STREAM, "kc")]
    topic = fresh_topic("routed")
    mock_kafka.create_topic(topic, 3)
    produce(mock_kafka, recorded, topic)
    path = config_file(tmp_path, mock_kafka, clickhouse, topic, "kc", database, source_table="kc")
    short = path.read_text()
    refused = inside("init", path, "--apply")
    assert refused.returncode == 1
    [whole] = set(re.findall(r"states (\S+) as its source table, which may be kc but", refused.stderr))
    assert f"Set source_table: {whole};" in refused.stderr
    path.write_text(short.replace("source_table: kc", f"source_table: {whole}"))
    assert inside("init", path, "--apply").returncode == 0
    path.write_text(short)
    checked = inside("check", path)
    assert checked.returncode == 1
    assert f"Set source_table: {whole};" in checked.stdout + checked.stderr
    with pytest.raises(StreamFailed, match="which may be kc but") as stopped:
        run_inline(path)
    assert f"Set source_table: {whole};" in (stopped.value.hint or "")
    settings = load(path)
    owner = ledger_of(settings, client).owner()
    assert owner is not None
    forget(settings.stream_name, owner.run_id)  # as if the process had ended
    path.write_text(short.replace("source_table: kc", f"source_table: {whole}"))
    run_inline(path)
    assert client.rows(f"SELECT count() AS n FROM {database}.kc_current")[0]["n"] > 0
    assert inside("verify", path).returncode == 0
    assert inside("check", path).returncode == 0
