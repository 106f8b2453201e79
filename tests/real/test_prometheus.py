"""A real Prometheus scrapes a job's metrics, and evaluates the alert rules and the dashboard's queries."""

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ch_sink.local import free_port
from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import Standing, StreamSummary, StreamView
from ch_sink.ports import Compared
from ch_sink.serve.listener import Address
from ch_sink.serve.metrics import Metrics, MetricsServer
from tests.real.stand.daemon import Daemon, Missing
from tests.real.stand.programs import programs
from tests.support.views import counts_of, view

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
RULES = COMPOSE / "prometheus" / "ch_sink.rules.yml"
DASHBOARD = COMPOSE / "grafana" / "dashboards" / "ch_sink.json"


@pytest.fixture(scope="module")
def live() -> Live:
    return Live()


@pytest.fixture(scope="module")
def prometheus(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes the metrics of ``live`` twice a second."""
    try:
        [program] = programs("prometheus", ["prometheus"])
    except Missing as why:
        pytest.skip(f"no Prometheus: {why}")
    server = MetricsServer(Address("127.0.0.1", 0), Metrics(live, lambda: "26.9.1").registry)
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    settings = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "ch_sink", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    daemon = Daemon(
        "prometheus",
        folder,
        [
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    )
    daemon.start(lambda: answers(url))
    yield url
    daemon.stop()
    server.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
        return json.loads(answer.read())["data"]


def until(wanted: Any, seconds: float = 30.0) -> Any:
    """What ``wanted`` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := wanted()):
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.2)
    return found


ORDERS = StreamSummary("orders", "shop.orders", "shop.orders", lag=5)


def batch(live: Live, number: int) -> None:
    summary, later = ORDERS, number - 1
    summary.batch = counts_of(100, 90, later, int(time.time() * 1000), deletes=1, decode_ms=300, backward_steps=later)
    summary.counts.add(summary.batch)
    summary.batch_seconds, summary.offsets, summary.batches = 0.4, {0: number * 100}, number
    live.batch(summary)


def test_rules_and_dashboard_hold_against_what_the_job_exports(live: Live, prometheus: str) -> None:
    stopped = view("users", "shop.users", Standing("stopped", error="no rights", next="grant them"))
    found = Compared(1_700_000_100.0, 1_700_000_000.0, "source", 900, missing=2)
    live.follow(lambda: [StreamView(ORDERS, compared=found), stopped])
    batch(live, 1)
    until(lambda: ask(prometheus, "query", query="ch_sink_records_total == 100")["result"])
    batch(live, 2)
    until(lambda: ask(prometheus, "query", query="ch_sink_records_total == 200")["result"])

    def firing() -> set[str]:
        alerts = ask(prometheus, "alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    expected = {"ChSinkStreamStopped", "ChSinkDeadLetters", "ChSinkSourceSteppedBack", "ChSinkTableDiffers"}
    until(lambda: firing() >= expected)
    assert firing() == expected
    groups = ask(prometheus, "rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}

    queries = [
        target["expr"].replace("$__rate_interval", "10s").replace("$stream", ".*")
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        for target in panel.get("targets", ())
        if "ch_sink" in target["expr"]
    ]
    assert len(queries) >= 10
    for query in queries:
        assert until(lambda query=query: ask(prometheus, "query", query=query)["result"], 10), query


def test_every_metric_that_rules_and_dashboard_name_is_exported(live: Live, prometheus: str) -> None:
    batch(live, 3)
    texts = RULES.read_text(encoding="utf-8") + DASHBOARD.read_text(encoding="utf-8")
    named = set(re.findall(r"\bch_sink_[a-z_]+[a-z]\b", "\n".join(re.findall(r'"?expr"?: .*', texts))))
    assert len(named) > 8
    exported = until(
        lambda: set(ask(prometheus, "label/__name__/values")) & named and ask(prometheus, "label/__name__/values")
    )
    assert named <= set(exported)
