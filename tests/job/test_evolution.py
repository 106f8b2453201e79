"""Columns that change in mid-stream, through the main job: Kafka, Spark, the ledger, ClickHouse."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ch_sink.clickhouse import ClickHouseTableAdmin, detect
from ch_sink.config import load
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.spark.job import run_streams
from ch_sink.wiring.streams import rewind_stream
from tests.support.choose import some
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import produce
from tests.support.recorded import at_the_snapshot
from tests.support.sink import Place, inside
from tests.support.stream import make_table

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def prepared(place: Place, source: str, **more: Any) -> Path:
    """The recorded topic, and the table that ``init`` made when there was nothing but the snapshot."""
    stream = f"{source}-json_schema"
    topic = f"{place.database}.{source}.ac"
    place.kafka.create_topic(topic, 3)
    engine = more.pop("engine", "replacing")
    make_table(place.client, place.database, "ac", at_the_snapshot(stream, "ac"), engine=engine, policy=policy_of())
    produce(place.kafka, topics(stream)[topic_of(stream, "ac")], topic)
    return place.config(topic, "ac", evolve="add_columns", **more)


@pytest.mark.long
@pytest.mark.parametrize("source", ["postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def test_the_job_adds_the_columns_of_the_source(source: str, place: Place, spark: SparkSession) -> None:
    config = prepared(place, source)
    [summary] = run_streams([load(config)], once=True)
    assert summary.counts.records == 7
    assert place.differences(source, f"{source}-json_schema", "ac") == []
    table = detect(place.client, place.database, "ac", policy_of())
    assert {"extra", "d2"} <= {c.name for c in table.source_columns}
    rewind_stream(load(config))
    [summary] = run_streams([load(config)], once=True)
    assert summary.counts.records == 7
    assert place.differences(source, f"{source}-json_schema", "ac") == []


@pytest.mark.long
@pytest.mark.parametrize("altered", some([(False,), (True,)], [(True,)]), ids=["before the alter", "after the alter"])
def test_a_job_that_dies_around_the_alter_stores_each_change_once(
    altered: bool, place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepared(place, "mariadb", engine="append")
    carry_out = ClickHouseTableAdmin.carry_out

    def dies(self: ClickHouseTableAdmin, *arguments: Any) -> None:
        if altered:
            carry_out(self, *arguments)
        raise StreamFailed("the driver died here")

    with monkeypatch.context() as patch:
        patch.setattr(ClickHouseTableAdmin, "carry_out", dies)
        with pytest.raises(StreamFailed, match="died here"):
            run_streams([load(config)], once=True)
    # The chunk is stored whole, once its columns exist.
    assert place.rows("SELECT count() AS n FROM {db}.ac") == [{"n": 0}]
    assert inside("resume", config).returncode == 0  # an error that is not the server's stops the stream
    run_streams([load(config)], once=True)
    assert place.differences("mariadb", "mariadb-json_schema", "ac") == []
    assert place.rows("SELECT count() AS n FROM {db}.ac") == [{"n": 6}]
