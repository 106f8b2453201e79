"""Avro topics as a user runs them: init, check, run and status with a schema registry over HTTP."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.fixtures import registry_schemas, topic_of, topics
from tests.support.kafka import produce
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.sink import Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
STREAM, TABLE = "postgres-avro", "kc"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server(registry_schemas("postgres"), user="sink:hunter2") as found:
        yield found


@pytest.mark.long
def test_init_check_run_and_what_stops_it(place: Place, server: RegistryServer) -> None:
    topic = f"{place.database}.{TABLE}"
    place.kafka.create_topic(topic, 3)
    records = topics(STREAM)[topic_of(STREAM, TABLE)]
    bad = replace(records[0], value=b"\0\0\0\x03\xe7\1\2\3", key=records[0].key, headers=())
    produce(place.kafka, [*records[:9], bad, *records[9:]], topic)
    config = place.config(topic, TABLE)

    made = inside("init", config, "--apply")
    assert made.returncode == 1
    assert "schema.registry.url" in made.stderr

    secret = {"CH_SINK__KAFKA__SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": "sink:hunter2"}
    known = ("--set", f"kafka.schema.registry.url={server.url}", "--set", "kafka.schema.registry.max.retries=1")
    made = inside("init", config, "--apply", *known, **secret)
    assert made.returncode == 0, made.stderr
    checked = inside("check", config, "--json", *known, **secret)
    assert checked.returncode == 0, checked.stdout
    levels = {f["title"]: f["level"] for f in json.loads(checked.stdout)["findings"]}
    assert levels["change events"] == levels["columns"] == "ok"

    refused = inside("run", config, "--once", *known)
    assert refused.returncode == 1
    assert "refuses schema id" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert int(place.rows("SELECT count() AS n FROM {db}.ch_sink_dead_letters")[0]["n"]) == 0

    done = inside("run", config, "--once", *known, **secret)
    assert done.returncode == 0, done.stderr
    assert place.differences("postgres", STREAM, TABLE) == []
    [letter] = place.rows("SELECT reason FROM {db}.ch_sink_dead_letters FINAL")
    assert "no schema with id 999" in letter["reason"]
    for run in (made, checked, refused, done):
        assert "hunter2" not in run.stdout + run.stderr
