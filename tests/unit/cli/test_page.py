"""What the page shows of a stream: the form of `status`, whatever job runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.cli.page import JobPage
from ch_sink.errors import ClickHouseError
from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import StreamView
from tests.support.views import view


def shown(monkeypatch: pytest.MonkeyPatch, stream: StreamView, known: dict[str, Any] | None) -> dict[str, Any]:
    """``known``: what `status` says of the stream; None while its server is away."""

    def statuses(_configs: object, _warn: object) -> list[Any]:
        if known is None:
            raise ClickHouseError("ClickHouse does not answer", code=None)
        return [SimpleNamespace(stream=stream.stream, as_json=lambda: {"stream": stream.stream, **known})]

    monkeypatch.setattr("ch_sink.discovery.statuses.statuses", statuses)
    live = Live()
    live.follow(lambda: [stream])
    [found] = JobPage(live, list).streams()
    return dict(found)


def test_letters_of_an_earlier_job_are_shown_as_status_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "rows": 391,
        "deletes": 39,
        "dead_letters": 3,
        "deduplicated": 2,
        "lag": 7,
        "since": "2026",
        "error": "old",
    }
    found = shown(monkeypatch, view("orders", lag=0), known)
    assert [found[name] for name in ("rows", "deletes", "dead_letters", "deduplicated")] == [391, 39, 3, 2]
    assert (found["lag"], found["since"]) == (0, "2026"), "the job knows how far it is, the ledger since when it runs"
    assert (found["error"], found["next"]) == (None, None), "an error that is over is not shown until the next look"


def test_while_the_server_is_away_a_stream_still_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, view("orders"), None)
    assert {"state", "lag", "error", "next", "rows", "dead_letters"} <= set(found)
