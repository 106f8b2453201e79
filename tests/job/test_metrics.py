"""A job's own metrics, read while it runs."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from ch_sink.config import load
from ch_sink.local import free_port
from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import StreamSummary
from ch_sink.spark.job import run_job, run_streams
from ch_sink.wiring.crew import Observers
from tests.job.test_job import prepared
from tests.support.kafka import produce
from tests.support.sink import Place

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def test_metrics_of_a_running_job_equal_what_its_summary_says(place: Place, spark: SparkSession) -> None:
    address = f"127.0.0.1:{free_port()}"
    config, topic, records = prepared(place, "mariadb-json_plain", "kc", metrics=address)
    produce(place.kafka, records, topic)
    seen: dict[str, float] = {}

    def scrape(_: StreamSummary) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    if sample.labels.get("state", "running") == "running":
                        seen[sample.name] = sample.value

    [summary] = run_streams([load(config)], once=True, on_batch=scrape)
    assert seen["ch_sink_records_total"] == summary.counts.records == len(records)
    assert seen["ch_sink_rows_total"] == summary.counts.rows > 0
    assert seen["ch_sink_deletes_total"] == summary.counts.deletes
    assert seen["ch_sink_lag_records"] == 0
    assert seen["ch_sink_stream_state"] == 1
    assert seen["ch_sink_batch_seconds_sum"] > 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=10)


def test_table_and_lag_are_known_before_the_first_batch(place: Place, spark: SparkSession) -> None:
    """Prometheus sees no increase of a counter that gets its labels with its first event."""
    live = Live()
    config, _, _ = prepared(place, "mariadb-json_plain", "kc")
    wrong = [f"clickhouse.table={place.database}_nowhere", "stream=unopened"]
    run_job([load(config), load(config, wrong)], once=True, seen=Observers(live=live))
    found = {view.summary.table: (view.summary.batches, view.summary.lag) for view in live.snapshot()}
    assert found == {f"{place.database}.kc": (0, 0), f"{place.database}.{place.database}_nowhere": (0, None)}
