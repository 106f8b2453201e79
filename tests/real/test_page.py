"""The page in a real browser."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import Standing, StreamSummary, StreamView
from ch_sink.ports import Compared
from ch_sink.serve.listener import Address
from ch_sink.serve.page import PageServer
from tests.real.stand.browser import Browser
from tests.real.stand.daemon import Missing
from tests.support.views import counts_of, view


class Job:
    """A running stream with an hour behind it, a stopped one with a dead letter and markup in its names."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.now = time.time() - 600
        self.live = Live(lambda: self.now)
        self.letters: list[dict[str, Any]] = [
            {"partition": 0, "offset": 7, "kind": "convert", "column": "age", "reason": "not a number: '<b>x</b>'"}
            | {"time": "2026-11-25T01:05:00.000+00:00", "key": '{"id": 9007199254740993}', "headers": []}
            | {"value": '{"before": null, "after": {"id": 9007199254740993, "age": "<b>x</b>"}, "op": "u"}'}
        ]
        orders = StreamSummary("shop.orders", "orders", "shop.orders")
        for number in range(1, 60):
            orders.batch = counts_of(1000, 900, decode_ms=50, insert_ms=20)
            orders.counts.add(orders.batch)
            orders.batches, orders.lag = number, 60 - number
            self.live.batch(orders)
            self.now += 10
        users = view("<i>users</i>", "", Standing("stopped", 0.0, "column `age` is missing", "ALTER TABLE"))
        found = Compared(self.now, self.now - 60, "source", 54_000, different=1)
        self.live.follow(lambda: [StreamView(orders, compared=found), users])

    def streams(self) -> Sequence[Mapping[str, Any]]:
        return [s.as_json(self.now) for s in self.live.snapshot()]

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        hidden = () if whole else ("key", "value", "headers")
        letters = self.letters if stream == "<i>users</i>" else []
        return [{name: value for name, value in one.items() if name not in hidden} for one in letters]

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(dict(key))
        event = {"partition": 0, "offset": 7, "op": "u", "position": "11805916207174113034240", "epoch": 0}
        row = {"id": 9007199254740993, "age": 5}
        return {"key": key, "events": [event | {"rule": "<b>newer</b>", "why": "stored"}], "stored": [row]}

    def retry(self, stream: str) -> Mapping[str, Any]:
        done, self.letters = len(self.letters), []
        return {"applied": done}


WIDTHS = (400, 1600)


class Window:
    """A page of the job in the browser."""

    def __init__(self, browser: Browser, server: PageServer) -> None:
        self.browser, self.url = browser, f"http://127.0.0.1:{server.port}/"
        self.look(1600)
        browser.open(self.url)
        browser.until("document.querySelectorAll('#streams tbody tr').length === 2")

    def look(self, width: int, *, dark: bool = False) -> None:
        """Give the window this width, and the page this colour scheme."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.browser.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def give(self, token: str) -> None:
        """Enter a token."""
        self.browser.click("#unlock")
        self.browser.type("#token", token)
        self.browser.click("dialog button[value=use]")

    def open(self, stream: str) -> None:
        """Go to the page of a stream, as its link does."""
        self.browser.run("location.hash = '#/stream/' + encodeURIComponent(arguments[0])", stream)
        self.browser.until("!document.querySelector('#stream').hidden")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        found = Browser()
    except Missing as why:
        pytest.skip(f"no browser: {why}")
    with found:
        yield found


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def window(browser: Browser, job: Job) -> Iterator[Window]:
    server = PageServer(Address("127.0.0.1", 0), job, "sesame")
    found = Window(browser, server)
    yield found
    server.close()
    browser.until("document.querySelector('#unreachable').innerText.includes('does not answer')")


def test_the_overview_shows_the_worst_first_and_names_as_text(window: Window) -> None:
    browser = window.browser
    assert browser.text("#streams tbody tr:first-child a") == "<i>users</i>"
    assert browser.text("#streams tbody tr:first-child .state") == "stopped"
    assert "column `age` is missing" in browser.text("#streams tbody tr:first-child")
    assert "1 stopped, 1 running" in browser.text("#summary")
    assert browser.text("#streams tbody tr:nth-child(2) td:last-child") == "1 differ"
    drawn = browser.run("return document.querySelector('#streams tr:nth-child(2) .spark path').getAttribute('d')")
    assert len(drawn) > 300
    assert float(drawn.split()[0].removeprefix("M")) < 20, "ten minutes fill the plot"
    browser.type("#filter", "USERS")
    browser.until("document.querySelectorAll('#streams tbody tr').length === 1")
    browser.type("#filter", "nothing of that name")
    browser.until("document.querySelector('#nothing').innerText.includes('No stream matches')")


def test_a_stream_is_opened_by_keyboard_and_its_plots_have_axes(window: Window) -> None:
    browser = window.browser
    browser.run("document.querySelector('#streams tbody tr:nth-child(2) a').focus()")
    browser.press("\ue007")
    browser.until("document.querySelectorAll('.plot canvas').length === 2")
    assert browser.text("#name") == "shop.orders"
    assert "decode" in browser.text("#stages")
    drawn = "return charts.rate.data[1].filter(value => value > 0).length"
    assert browser.run(drawn) > 50
    assert browser.run("return charts.rate.axes.map(axis => axis._values?.length > 1)") == [True, True]
    assert "0 missing, 0 extra, 1 with other values" in browser.text("#verdict")


def test_a_row_is_explained_with_the_token_only(window: Window, job: Job) -> None:
    browser = window.browser
    window.open("shop.orders")
    window.give("wrong")
    browser.type("#key", '{"id": 7}')
    browser.click("#explain")
    browser.until("document.querySelector('#answer').innerText.includes('the token is wrong')")
    assert job.asked == []
    window.give("sesame")
    browser.click("#explain")
    browser.until("document.querySelectorAll('#events tbody tr').length === 1")
    event = ["0/7", "u", "11805916207174113034240", "<b>newer</b>", "stored"]
    assert browser.text("#events tbody tr").split("\t") == event
    assert '"id": 9007199254740993' in browser.text("#stored")
    window.open("<i>users</i>")
    assert browser.text("#stored") == ""


def test_a_dead_letter_is_shown_compared_and_retried_with_the_token_only(window: Window, job: Job) -> None:
    browser = window.browser
    window.open("<i>users</i>")
    browser.until("document.querySelectorAll('#letters details').length === 1")
    assert "not a number: '<b>x</b>'" in browser.text("#letters summary")
    assert "ALTER TABLE" in browser.text("#problem")
    browser.click("#letters summary")
    assert "Enter the token" in browser.text("#letters details")
    browser.click("#retry")
    browser.until("document.querySelector('#retried').innerText.includes('the token is wrong')")
    assert job.letters

    window.give("sesame")
    browser.until("document.querySelectorAll('#letters pre').length === 2")
    browser.click("#letters summary")
    assert '"id": 9007199254740993' in browser.text("#letters pre")
    browser.click("#letters details button")
    browser.until("document.querySelectorAll('#letters tbody tr').length === 2")
    assert job.asked == [{"id": 9007199254740993}]
    assert browser.text("#letters tr.changed").split("\t") == ["age", "<b>x</b>", "5"]
    browser.click("#retry")
    browser.until("document.querySelector('#retried').innerText.includes('applied: 1')")
    assert (job.letters, browser.text("#letters")) == ([], "None.")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_narrow_and_wide_windows_in_both_schemes(window: Window, dark: bool) -> None:
    for place in ("", "#/stream/shop.orders", "#/stream/%3Ci%3Eusers%3C%2Fi%3E"):
        window.browser.run("location.hash = arguments[0]", place)
        for width in WIDTHS:
            window.look(width, dark=dark)
            window.browser.until(f"document.documentElement.scrollWidth <= {width}", 5)
            light = window.browser.run(
                "return getComputedStyle(document.body).backgroundColor === 'rgb(245, 246, 248)'"
            )
            assert light is not dark
            name = f"{'stream' if place else 'overview'}-{'dark' if dark else 'light'}-{width}"
            picture(name, window.browser.screenshot())


def picture(name: str, png: bytes) -> None:
    """Keep it in the folder that CH_SINK_PICTURES names, to look at."""
    if folder := os.environ.get("CH_SINK_PICTURES"):
        Path(folder, f"{name}.png").write_bytes(png)
