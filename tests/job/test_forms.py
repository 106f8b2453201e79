"""Topics whose events are not envelopes of rows, as a user runs them: ``init``, then the job, cut into two runs."""

import json

import pytest
from pyspark.sql import SparkSession

from ch_sink.config import load
from ch_sink.spark.job import run_streams
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.mongodb import draw_collection, truth
from tests.support.sink import Place, inside
from tests.support.smt import transformation

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
STREAM = "postgres-json_schema-kc"


@pytest.mark.long
def test_documents_and_flattened_rows(place: Place, spark: SparkSession) -> None:
    collection, dialect = draw_collection(77, 70)
    documents, rows = fresh_topic("customers"), fresh_topic("kc")
    sent = {
        documents: recorded(documents, collection.events(dialect)),
        rows: transformation("postgres", "tombstone").apply(topics(STREAM)[topic_of(STREAM, "kc")]),
    }
    place.kafka.create_topic(documents, 1)
    place.kafka.create_topic(rows, 3)
    configs = [
        place.config(documents, "customers", engine="collapsing"),
        place.config(rows, "kc"),
    ]
    for topic, records in sent.items():
        # What ``init`` samples has all kinds of event.
        produce(place.kafka, records[: len(records) * 2 // 3], topic)
    for config in configs:
        made = inside("init", config, "--apply")
        assert made.returncode == 0, made.stderr
    loaded = [load(config) for config in configs]
    run_streams(loaded, once=True)
    for topic, records in sent.items():
        produce(place.kafka, records[len(records) * 2 // 3 :], topic)
    summaries = run_streams(loaded, once=True)
    assert [s.counts.dead_letters for s in summaries] == [0, 0]
    found = place.rows("SELECT document FROM {db}.customers_current")
    assert sorted(json.dumps(json.loads(row["document"]), sort_keys=True) for row in found) == truth(collection)
    assert place.differences("postgres", STREAM, "kc") == []
