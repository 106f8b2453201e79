"""A running job purges by itself: which streams, and what it says."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.trust.purge import Purged, Purging


def stream(name: str, purge_after: float | None = 86_400.0) -> Any:
    return SimpleNamespace(stream_name=name, purge_after=purge_after)


@dataclass
class Tables:
    refused: dict[str, Exception] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def purge(self, config: Any) -> Purged:
        self.seen.append(config.stream_name)
        if error := self.refused.get(config.stream_name):
            raise error
        return Purged(config.stream_name, f"shop.{config.stream_name}", True, 12, 5)


def purging(tables: Tables, *streams: Any, working: Callable[[], set[str]] | None = None) -> Purging:
    return Purging(lambda: streams, working or (lambda: {s.stream_name for s in streams}), tables.purge)


def test_streams_that_state_it_and_that_the_job_works_on_are_purged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ch_sink")
    tables = Tables()
    purging(
        tables, stream("orders"), stream("users", None), stream("paused"), working=lambda: {"orders", "users"}
    ).step()
    assert tables.seen == ["orders"]
    assert "orders: 12 rows of shop.orders, deleted more than 1 days ago, were removed" in caplog.text


def test_what_refuses_a_purge_is_said_once_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    tables = Tables({"orders": StreamFailed("2 dead letters can still be retried"), "users": ValueError("odd")})
    one = purging(tables, stream("orders"), stream("users"), stream("stock"))
    for _ in range(3):
        one.step()
    assert tables.seen == ["orders", "users", "stock"] * 3
    said = [r.getMessage() for r in caplog.records]
    assert sum("orders is not purged: 2 dead letters" in text for text in said) == 1
    assert any("users is not purged: ValueError: odd" in text for text in said)
    tables.refused.clear()
    one.step()
    tables.refused["orders"] = StreamFailed("2 dead letters can still be retried")
    one.step()
    assert sum("orders is not purged" in r.getMessage() for r in caplog.records) == 2


def test_nothing_is_begun_once_the_job_ends() -> None:
    tables = Tables()
    one = purging(tables, stream("orders"))
    one.close()
    one.start()
    one.step()
    assert tables.seen == []
