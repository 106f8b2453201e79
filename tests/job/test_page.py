"""The page of a running job: its data, and a dead letter retried from it."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ch_sink.local import free_port
from tests.real.stand.browser import Browser
from tests.real.stand.daemon import Missing
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


@dataclass
class Running:
    """A job with three records, of which one does not fit its column, and its page."""

    place: Place
    topic: str
    url: str
    job: subprocess.Popen[str]

    def stream(self, **wanted: object) -> dict[str, Any]:
        """The stream once it shows this."""
        deadline = time.monotonic() + 120
        while True:
            found = (ask(f"{self.url}api/streams") or {"streams": []})["streams"]
            if found and {name: found[0].get(name) for name in wanted} == wanted:
                return dict(found[0])
            assert self.job.poll() is None, self.job.communicate()[0]
            assert time.monotonic() < deadline, found
            time.sleep(0.3)

    def widen(self) -> None:
        """Let the column take the value."""
        self.place.client.command(f"ALTER TABLE {self.place.database}.n MODIFY COLUMN n Int32")

    def rows(self) -> list[tuple[object, ...]]:
        return [(r["id"], r["n"]) for r in self.place.rows("SELECT id, n FROM {db}.n FINAL ORDER BY id")]


@pytest.fixture
def running(place: Place) -> Iterator[Running]:
    topic, port = f"{place.database}.n", free_port()
    place.kafka.create_topic(topic, 1)
    place.client.command(
        f"CREATE TABLE {place.database}.n (id Int64, n Int8, _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    produce(place.kafka, [event(topic, 0, 1, 5), event(topic, 1, 2, 5000), event(topic, 2, 3, 7)], topic)
    config = place.config(topic, "n")
    assert inside("init", config, "--apply").returncode == 0
    job = subprocess.Popen(
        [sys.executable, "-m", "ch_sink", "run", str(config), "--ui", f"127.0.0.1:{port}", "--ui-token", "sesame"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Running(place, topic, f"http://127.0.0.1:{port}/", job)
    finally:
        job.terminate()
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 143, said
    assert f"the page is at http://127.0.0.1:{port}/" in said
    assert "sesame" not in said


def test_a_dead_letter_is_retried_from_the_page_while_the_job_runs(running: Running) -> None:
    seen = running.stream(state="running", dead_letters=1, lag=0)
    assert seen["topic"] == running.topic
    letters = f"{running.url}api/dead-letters/{seen['stream'].replace('/', '%2F')}"
    [letter] = ask(letters)["dead_letters"]
    assert (letter["offset"], letter["column"]) == (1, "n")
    running.widen()
    done = ask(f"{letters}/retry", token="sesame")
    assert done["applied"] == 1, done
    produce(running.place.kafka, [event(running.topic, 3, 4, 9)], running.topic)
    running.stream(state="running", rows=3)  # of this job; the retried one is not among them
    assert running.rows() == [(1, 5), (2, 5000), (3, 7), (4, 9)]
    assert ask(letters)["dead_letters"] == []


@pytest.mark.real
def test_the_page_of_a_running_job_is_driven_in_a_browser(running: Running) -> None:
    """State, plots, a wrong token refused, a row explained, a dead letter retried."""
    try:
        browser = Browser()
    except Missing as why:
        pytest.skip(f"no browser: {why}")
    running.stream(state="running", dead_letters=1, lag=0)
    with browser:
        browser.open(running.url)
        browser.until("document.querySelector('#streams .state')?.innerText === 'running'")
        browser.click("#streams tbody a")
        browser.until("document.querySelector('#letters summary')?.innerText.includes('5000')")
        browser.until("document.querySelector('#stages').innerText.includes('insert')", 40)

        running.widen()
        give(browser, "open")
        browser.type("#key", '{"id": 2}')
        for button, answer in (("#retry", "#retried"), ("#explain", "#answer")):
            browser.click(button)
            browser.until(f"document.querySelector('{answer}').innerText.includes('the token is wrong')")
        assert [key for key, _ in running.rows()] == [1, 3]

        give(browser, "sesame")
        browser.click("#explain")
        browser.until("document.querySelectorAll('#events tbody tr').length === 1", 60)
        assert "dead letter" in browser.text("#events tbody tr")
        browser.click("#retry")
        browser.until("document.querySelector('#retried').innerText.includes('applied: 1')", 90)
        assert browser.text("#letters") == "None."
        assert running.rows() == [(1, 5), (2, 5000), (3, 7)]

        browser.type("#key", '{"id": 3}')
        browser.click("#explain")
        browser.until("document.querySelector('#events tbody').innerText.includes('newer')", 60)
        assert '"n": "7"' in browser.text("#stored")


def give(browser: Browser, token: str) -> None:
    """Enter the token."""
    browser.click("#unlock")
    browser.type("#token", token)
    browser.click("dialog button[value=use]")
