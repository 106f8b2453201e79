"""What Prometheus reads, by its own parser."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ch_sink.errors import ConfigError
from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import Standing
from ch_sink.ports import Compared
from ch_sink.serve.listener import Address
from ch_sink.serve.metrics import Metrics, MetricsServer
from tests.support.views import view

COMPOSE = Path(__file__).resolve().parents[3] / "compose"
ORDERS = view(
    "orders",
    "shop.orders",
    lag=40,
    compared=Compared(1_700_000_100.0, 1_700_000_000.0, "source", 900, missing=2, different=1),
    records=1000,
    rows=900,
    dead_letters=2,
    source_time=1_700_000_000_000,
    deletes=50,
    redelivered=7,
    tombstone=5,
    decode_ms=1500,
    insert_ms=200,
)


@pytest.fixture
def live() -> Live:
    live = Live()
    odd = view('odd "name"\n', "", Standing("stopped", error="no rights", next="grant them"))
    live.follow(lambda: [ORDERS, odd])
    return live


@pytest.fixture
def server(live: Live) -> Iterator[MetricsServer]:
    metrics = Metrics(live, lambda: "26.9.1")
    summary = ORDERS.summary
    summary.batches = 3
    summary.batch, summary.batch_seconds, summary.offsets, summary.retries = summary.counts, 2.0, {0: 17, 1: 9}, 1
    live.batch(summary)
    found = MetricsServer(Address("127.0.0.1", 0), metrics.registry)
    yield found
    found.close()


def scrape(server: MetricsServer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/metrics",
        headers={"accept": "application/openmetrics-text; version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.name.startswith("ch_sink") for family in families)
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "table")): sample.value
        for family in families
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_figures_of_each_stream(server: MetricsServer) -> None:
    found = scrape(server)
    mine = labels(stream="orders")
    expected = {
        "ch_sink_records_total": 1000,
        "ch_sink_rows_total": 900,
        "ch_sink_deletes_total": 50,
        "ch_sink_dead_letters_total": 2,
        "ch_sink_deduplicated_changes_total": 7,
        "ch_sink_batches_total": 3,
        "ch_sink_backward_steps_total": 0,
        "ch_sink_retries_total": 1,
        "ch_sink_lag_records": 40,
        "ch_sink_equal_up_to_timestamp_seconds": 1_700_000_000,
        "ch_sink_differing_rows": 3,
        "ch_sink_newest_change_timestamp_seconds": 1_700_000_000,
    }
    assert {name: found[name, mine] for name in expected} == expected
    assert found["ch_sink_skipped_records_total", labels(stream="orders", kind="tombstone")] == 5
    assert found["ch_sink_next_offset", labels(stream="orders", partition="1")] == 9
    assert found["ch_sink_lag_seconds", mine] > 0


def test_durations_are_histograms(server: MetricsServer) -> None:
    found = scrape(server)
    assert found["ch_sink_batch_seconds_sum", labels(stream="orders")] == 2.0
    assert found["ch_sink_batch_seconds_count", labels(stream="orders")] == 1
    assert found["ch_sink_batch_seconds_bucket", labels(stream="orders", le="1.0")] == 0
    assert found["ch_sink_batch_seconds_bucket", labels(stream="orders", le="2.5")] == 1
    assert found["ch_sink_stage_seconds_sum", labels(stream="orders", stage="decode")] == 1.5


@pytest.mark.parametrize("file", ["grafana/dashboards/ch_sink.json", "prometheus/ch_sink.rules.yml"])
def test_every_series_that_dashboard_and_rules_query_is_exported(server: MetricsServer, file: str) -> None:
    """With the labels by which they select: a renamed metric or label would leave a panel empty."""
    queries = list(expressions(yaml.safe_load((COMPOSE / file).read_text(encoding="utf-8"))))
    exported = {name: dict(found) for name, found in scrape(server)}
    series = [found for query in queries for found in re.findall(r"\b(ch_sink_\w+)(?:\{([^}]*)\})?", query)]
    assert len(series) >= 8
    for name, selected in series:
        assert name in exported, name
        assert set(re.findall(r"(\w+)=", selected)) <= set(exported[name]), (name, selected)


def expressions(part: object) -> Iterator[str]:
    """The values of all keys ``expr`` of a document."""
    if isinstance(part, list):
        for one in part:
            yield from expressions(one)
    elif isinstance(part, dict):
        for key, one in part.items():
            if key == "expr":
                yield str(one)
            else:
                yield from expressions(one)


def test_state_is_one_for_the_present_state_only(server: MetricsServer) -> None:
    found = scrape(server)
    odd = 'odd "name"\n'
    assert found["ch_sink_stream_state", labels(stream=odd, state="stopped")] == 1
    assert found["ch_sink_stream_state", labels(stream=odd, state="running")] == 0
    assert found["ch_sink_stream_state", labels(stream="orders", state="running")] == 1


def test_versions_and_memory_of_the_process(server: MetricsServer) -> None:
    found = scrape(server)
    assert any(name == "ch_sink_info" and ("clickhouse_version", "26.9.1") in given for name, given in found)
    assert found["ch_sink_process_resident_memory_bytes", labels()] > 1 << 20


def test_an_address_in_use_is_said_with_its_key(server: MetricsServer, live: Live) -> None:
    with pytest.raises(ConfigError, match=f"metrics: cannot listen on 127.0.0.1:{server.port}") as error:
        MetricsServer(Address("127.0.0.1", server.port), Metrics(live).registry)
    assert error.value.hint
