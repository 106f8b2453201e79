"""A worker over Kafka and ClickHouse: small ranges of many partitions are one insert; run again, they store nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.config import load
from ch_sink.discovery.wiring import ledger_of, topic_offsets
from ch_sink.errors import Superseded
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.order import State
from ch_sink.stream.claims import forget
from ch_sink.stream.tasks import RangeDone, RangeTask, tried
from ch_sink.wiring.worker import Work, fetched_together, run_configured, run_group
from tests.support.hand import mysql
from tests.support.kafka import produce, recorded
from tests.support.sink import config_file, inside

pytestmark = [pytest.mark.integration, pytest.mark.slow]
PARTITIONS = 20


def run(work: Sequence[Work]) -> list[RangeDone]:
    done = [one for one in run_group(work, run_configured, fetched_together) if isinstance(one, RangeDone)]
    assert [one.partition for one in done] == [task.partition for _, task in work]
    return done


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
def test_small_ranges_of_many_partitions_are_one_insert(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str, engine: str
) -> None:
    topic = f"{database}.orders"
    mock_kafka.create_topic(topic, PARTITIONS)
    events = [mysql("c", {"id": n}, None, {"id": n, "big": f"v{n}"}, 100 + n) for n in range(3 * PARTITIONS)]
    produce(mock_kafka, [replace(r, partition=n % PARTITIONS) for n, r in enumerate(recorded(topic, events))], topic)
    config = config_file(tmp_path, mock_kafka, clickhouse, topic, "orders", database)
    made = inside("init", config, "--apply", "--set", f"engine={engine}")
    assert made.returncode == 0, made.stderr
    settings = load(config)
    table = detect(client, database, "orders", settings.policy())
    ledger = ledger_of(settings, client)
    claim = ledger.claim("r")
    with topic_offsets(settings) as offsets:
        state = offsets.state(topic)
    text, name = settings.to_task_json(), settings.stream_name
    tasks = [
        RangeTask(name, topic, state.topic_id, p, table, 0, 3, State(), claim=claim, batch=1, settled=True)
        for p in range(PARTITIONS)
    ]
    work: list[Work] = [(text, task) for task in tasks]
    done = run(work)
    assert [(one.end, one.failure, one.counts.rows) for one in done] == [(3, None, 3)] * PARTITIONS
    [stored] = client.rows(f"SELECT count() AS n, uniqExact(_part) AS parts FROM {database}.orders")
    assert (stored["n"], stored["parts"]) == (3 * PARTITIONS, 1)
    done = run([(text, tried(task, 1)) for _, task in work])
    assert [(one.end, one.failure) for one in done] == [(3, None)] * PARTITIONS
    late = run(work)  # Their process was frozen before it asked. The collapsing table has nothing left to store.
    assert {type(one.failure) for one in late} == {Superseded if engine == "replacing" else type(None)}
    forget(name, "r")
    ledger_of(settings, client).claim("another")
    displaced = run([(text, replace(task, batch=2)) for _, task in work])
    assert all("run another" in str(one.failure) for one in displaced)
    assert client.rows(f"SELECT count() AS n FROM {database}.orders")[0]["n"] == 3 * PARTITIONS
