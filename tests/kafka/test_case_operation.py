"""The numbered case of operation: what lag tools and ``status`` see of a stream, without Spark."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from ch_sink.config import load
from ch_sink.model.policy import policy_of
from tests.support import plain_job
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import Place, inside
from tests.support.stream import make_table, schema_of

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]

STREAM, TABLE = "mariadb-json_schema-kc", "kc"


def test_case_17_group_offsets_lag_and_times_are_there_to_be_seen(place: Place) -> None:
    topic = fresh_topic(f"{place.database}.{TABLE}")
    place.kafka.create_topic(topic, 3)
    make_table(place.client, place.database, TABLE, schema_of(STREAM, TABLE), policy=policy_of())
    records = topics(STREAM)[topic_of(STREAM, TABLE)]
    produce(place.kafka, records, topic)
    config = place.config(topic, TABLE)
    settings = load(config)
    assert status(config)["lag"] == len(records)
    plain_job.main(str(config), "1000", "1")

    ends = {p: 1 + max(r.offset for r in records if r.partition == p) for p in {r.partition for r in records}}
    consumer = Consumer({"bootstrap.servers": place.kafka.bootstrap, "group.id": settings.consumer_group})
    places = consumer.committed([TopicPartition(topic, p) for p in ends], timeout=10)
    consumer.close()
    assert {place.partition: place.offset for place in places} == ends

    seen = status(config)
    assert seen["lag"] == 0
    assert {p["partition"]: p["lag"] for p in seen["partitions"]} == dict.fromkeys(ends, 0)
    newest = max(json.loads(r.value)["payload"]["source"]["ts_ms"] for r in records if r.value)
    shown = max(p["source_time"] for p in seen["partitions"] if p["source_time"])
    assert shown.startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(newest / 1000)))
    assert seen["behind_seconds"] == 0
    assert set(seen["seconds"]) >= {"decode", "insert"}


def test_case_17_lag_in_seconds_counts_from_the_newest_event_applied(place: Place) -> None:
    topic = fresh_topic(f"{place.database}.{TABLE}")
    place.kafka.create_topic(topic, 1)
    make_table(place.client, place.database, TABLE, schema_of(STREAM, TABLE), policy=policy_of())
    records = [r for r in topics(STREAM)[topic_of(STREAM, TABLE)] if r.partition == 0]
    produce(place.kafka, records[:10], topic)
    config = place.config(topic, TABLE)
    plain_job.main(str(config), "1000", "1")
    assert status(config)["behind_seconds"] == 0
    produce(place.kafka, records[10:], topic)
    newest = max(json.loads(r.value)["payload"]["source"]["ts_ms"] for r in records[:10] if r.value)
    seen = status(config)
    assert seen["lag"] == len(records) - 10
    assert abs(time.time() - newest / 1000 - seen["behind_seconds"]) < 60


def status(config: Path) -> dict[str, Any]:
    done = inside("status", config, "--json")
    assert done.returncode == 0, done.stderr
    [seen] = json.loads(done.stdout)["streams"]
    return seen
