"""Topics whose events are no envelopes of rows, as a user runs them: ``init``, then the job, cut into two runs."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ch_sink.clickhouse import Client
from ch_sink.config import load
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka
from ch_sink.spark.job import run_streams
from tests.support.collection import draw_collection, truth
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.recorded import equal
from tests.support.sink import config_file, inside
from tests.support.smt import transformation

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
STREAM = "postgres-json_schema-kc"


def test_documents_and_flattened_rows(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
    spark: SparkSession,
) -> None:
    collection, dialect = draw_collection(77, 70)
    documents, rows = fresh_topic("customers"), fresh_topic("kc")
    sent = {
        documents: recorded(documents, collection.events(dialect)),
        rows: transformation("postgres", "tombstone").apply(topics(STREAM)[topic_of(STREAM, "kc")]),
    }
    kafka.create_topic(documents, 1)
    kafka.create_topic(rows, 3)
    configs = [
        config_file(tmp_path, kafka, clickhouse, documents, "customers", database, init={"engine": "collapsing"}),
        config_file(tmp_path, kafka, clickhouse, rows, "kc", database),
    ]
    for topic, records in sent.items():
        # What ``init`` samples has all kinds of event.
        produce(kafka, records[: len(records) * 2 // 3], topic)
    for config in configs:
        made = inside("init", config, "--apply")
        assert made.returncode == 0, made.stderr
    loaded = [load(config) for config in configs]
    run_streams(loaded, once=True)
    for topic, records in sent.items():
        produce(kafka, records[len(records) * 2 // 3 :], topic)
    summaries = run_streams(loaded, once=True)
    assert [s.figures.dead_letters for s in summaries] == [0, 0]
    found = client.rows(f"SELECT document FROM {database}.customers_current")
    assert sorted(json.dumps(json.loads(row["document"]), sort_keys=True) for row in found) == truth(collection)
    assert equal(client, database, "postgres", STREAM, "kc") == []
