"""The page of a running job: its data, and a dead letter retried from it."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.real.stand.daemon import free_port
from tests.support.fixtures import Recorded
from tests.support.kafka import produce
from tests.support.sink import ROOT, Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def event(topic: str, offset: int, key: int, n: int) -> Recorded:
    source = {"connector": "mysql", "name": "shop", "db": "shop", "ts_ms": 1, "snapshot": "false"}
    source |= {"file": "binlog.000003", "pos": 400 + offset * 100, "row": 0, "server_id": 1, "gtid": None}
    value = {"before": None, "after": {"id": key, "n": n}, "source": source, "op": "c", "ts_ms": 2}
    return Recorded(topic, 0, offset, 1, json.dumps({"id": key}).encode(), json.dumps(value).encode(), ())


def ask(url: str, *, token: str | None = None) -> Any:
    """The answer, None while the page is not there."""
    request = urllib.request.Request(url, method="GET" if token is None else "POST")
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error
    except OSError:
        return None


def test_a_dead_letter_is_retried_from_the_page_while_the_job_runs(place: Place) -> None:
    topic, port = f"{place.database}.n", free_port()
    place.kafka.create_topic(topic, 1)
    place.client.command(
        f"CREATE TABLE {place.database}.n (id Int64, n Int8, _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    produce(place.kafka, [event(topic, 0, 1, 5), event(topic, 1, 2, 5000), event(topic, 2, 3, 7)], topic)
    config = place.config(topic, "n")
    assert inside("init", config, "--apply").returncode == 0
    page = f"http://127.0.0.1:{port}/api"
    job = subprocess.Popen(
        [sys.executable, "-m", "ch_sink", "run", str(config), "--ui", f"127.0.0.1:{port}", "--ui-token", "sesame"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:

        def stream(**wanted: object) -> dict[str, Any]:
            """The stream once it shows this."""
            deadline = time.monotonic() + 120
            while True:
                found = (ask(f"{page}/streams") or {"streams": []})["streams"]
                if found and {name: found[0].get(name) for name in wanted} == wanted:
                    return dict(found[0])
                assert job.poll() is None, job.communicate()[0]
                assert time.monotonic() < deadline, found
                time.sleep(0.3)

        seen = stream(state="running", dead_letters=1, lag=0)
        assert seen["topic"] == topic
        name = seen["stream"].replace("/", "%2F")
        [letter] = ask(f"{page}/dead-letters/{name}")["dead_letters"]
        assert (letter["offset"], letter["column"]) == (1, "n")
        place.client.command(f"ALTER TABLE {place.database}.n MODIFY COLUMN n Int32")
        done = ask(f"{page}/dead-letters/{name}/retry", token="sesame")
        assert done["applied"] == 1, done
        produce(place.kafka, [event(topic, 3, 4, 9)], topic)
        stream(state="running", rows=3)  # of this job; the retried one is not among them
        rows = place.rows("SELECT id, n FROM {db}.n FINAL ORDER BY id")
        assert [(row["id"], row["n"]) for row in rows] == [(1, 5), (2, 5000), (3, 7), (4, 9)]
        assert ask(f"{page}/dead-letters/{name}")["dead_letters"] == []
    finally:
        job.terminate()
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 143, said
    assert f"the page is at http://127.0.0.1:{port}/" in said
    assert "sesame" not in said
