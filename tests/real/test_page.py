"""The page in a real browser."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ch_sink.model.address import Address
from ch_sink.observe.live import Live
from ch_sink.observe.stream import Standing, StreamSummary, StreamView
from ch_sink.ports import Compared
from ch_sink.serve.server import PageServer
from tests.real.stand.browser import Browser
from tests.real.stand.daemon import Missing
from tests.support.views import counts_of, view


class Job:
    """A running stream with an hour behind it, a stopped one with a dead letter and markup in its names."""

    def __init__(self) -> None:
        self.now = time.time() - 600
        self.live = Live(lambda: self.now)
        self.letters = [
            {"partition": 0, "offset": 7, "kind": "decode", "reason": "no number: 'x'", "value": "<b>x</b>"}
        ]
        orders = StreamSummary("shop.orders", "orders", "shop.orders")
        for number in range(1, 60):
            orders.batch = counts_of(1000, 900, decode_ms=50, insert_ms=20)
            orders.counts.add(orders.batch)
            orders.batches, orders.lag = number, 60 - number
            self.live.batch(orders)
            self.now += 10
        users = view("<i>users</i>", "", Standing("stopped", 0.0, "column `age` is missing", "ALTER TABLE"))
        example = {"key": {"id": 7}, "kind": "different", "columns": {"note": ["<i>a</i>", None]}}
        found = Compared(self.now, self.now - 60, "source", 54_000, different=1, examples=(example,))
        self.live.follow(lambda: [StreamView(orders, compared=found), users])

    def streams(self) -> Sequence[Mapping[str, Any]]:
        return [s.as_json(self.now) for s in self.live.snapshot()]

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        return [one if whole else one | {"value": None} for one in self.letters if stream == "<i>users</i>"]

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        event = {"partition": 0, "offset": 7, "op": "u", "position": "11805916207174113034240", "epoch": 0}
        return {"key": key, "events": [event | {"rule": "<b>newer</b>", "why": ""}], "stored": [{"id": "7", "n": "5"}]}

    def retry(self, stream: str) -> Mapping[str, Any]:
        done, self.letters = len(self.letters), []
        return {"applied": done}


def picture(png: bytes) -> None:
    """Keep it where CH_SINK_PICTURE says: the picture in docs/ is made so."""
    if path := os.environ.get("CH_SINK_PICTURE"):
        Path(path).write_bytes(png)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        found = Browser()
    except Missing as why:
        pytest.skip(f"no browser: {why}")
    with found:
        yield found


def test_page_shows_states_and_plots_explains_and_retries_with_the_token_only(browser: Browser) -> None:
    job = Job()
    server = PageServer(Address("127.0.0.1", 0), job, "sesame")
    try:
        browser.open(f"http://127.0.0.1:{server.port}/")
        browser.until("document.querySelectorAll('tr.stream').length === 2")
        # The worst comes first, and names are text, never markup.
        assert browser.text("tr.stream:first-child td:first-child") == "<i>users</i>"
        assert browser.text("tr.stream:first-child .state") == "stopped"
        assert "1 stopped" in browser.text("#sum")

        browser.click("tr.stream:nth-child(2)")
        points = browser.until("document.querySelector('#rate polyline').getAttribute('points').split(' ').length > 50")
        assert points
        assert "decode" in browser.text("#legend")

        assert "0 missing, 0 extra, 1 different" in browser.text("#compared")
        assert browser.run("return document.querySelector('#differing').hidden")
        browser.type("#token", "sesame")
        browser.until("document.querySelectorAll('#differing tbody tr').length === 1")
        assert browser.text("#differing tbody tr").split("\t")[1:] == ["different", "note", "<i>a</i>", "–"]

        browser.type("#token", "wrong")
        browser.type("#key", '{"id": 7}')
        browser.click("#explain")
        browser.until("document.querySelector('#told').innerText.includes('the token is wrong')")
        browser.type("#token", "sesame")
        browser.click("#explain")
        browser.until("document.querySelectorAll('#events tbody tr').length === 1")
        told = ["0/7", "u", "11805916207174113034240", "0", "<b>newer</b>", ""]
        assert browser.text("#events tbody tr").split("\t") == told
        assert browser.text("#stored") == "stored: id=7, n=5"
        picture(browser.screenshot())

        browser.click("tr.stream:first-child")
        assert browser.text("#stored") == ""
        browser.until("document.querySelector('#letters tbody').innerText.includes('no number')")
        assert browser.text("#letters pre") == "<b>x</b>"
        assert "ALTER TABLE" in browser.text("#problem")
        browser.type("#token", "wrong")
        browser.click("#retry")
        browser.until("document.querySelector('#answer').innerText.includes('the token is wrong')")
        assert job.letters
        browser.type("#token", "sesame")
        browser.click("#retry")
        browser.until("document.querySelector('#answer').innerText.includes('applied: 1')")
        assert job.letters == []
        assert browser.run("return document.querySelectorAll('#letters tbody tr').length") == 0
    finally:
        server.close()
    browser.until("document.querySelector('#away').innerText.includes('no answer from the job')")
