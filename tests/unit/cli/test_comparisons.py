"""Tables that are compared by one command: those that have to wait for their streams do so together."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.cli import comparing
from ch_sink.cli.comparing import Comparisons, EachStream
from ch_sink.cli.output import Output
from ch_sink.errors import StreamFailed, StreamsFailed
from ch_sink.wiring.process import Stop, Stopped

NAMES = ["a", "b", "c", "d"]


def config(name: str) -> Any:
    place, tables = SimpleNamespace(database="d", table=name), SimpleNamespace(ledger="ledger")
    return SimpleNamespace(stream_name=name, clickhouse=place, tables=tables, state_database="d")


class Waiting:
    """A comparison that has to wait until all others have begun."""

    def __init__(self, name: str, begun: list[str], closed: list[str], fails: bool) -> None:
        self.name, self.begun, self.closed, self.fails = name, begun, closed, fails
        self.report = f"report of {name}"

    def steps(self) -> Iterator[None]:
        self.begun.append(self.name)
        for _ in range(100):
            if len(self.begun) == len(NAMES):
                break
            yield
        else:
            raise AssertionError(f"{self.name} waits alone")
        if self.fails:
            raise StreamFailed("cannot be compared")

    def close(self) -> None:
        self.closed.append(self.name)


def compared(stop: Stop, closed: list[str], fails: str = "") -> tuple[EachStream, Iterator[tuple[Any, Any, float]]]:
    begun: list[str] = []
    each = EachStream(Output(), [config(name) for name in NAMES])
    begin: Any = lambda c: Waiting(c.stream_name, begun, closed, c.stream_name == fails)  # noqa: E731
    return each, Comparisons(each, begin, stop).run()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_LOOK", 0.001)


def test_no_table_waits_alone_and_each_shadow_goes_when_its_report_is_there() -> None:
    closed: list[str] = []
    _, reports = compared(Stop(), closed)
    for done, (of, report, _) in enumerate(reports, start=1):
        assert report == f"report of {of.stream_name}"
        assert len(closed) == done
    assert sorted(set(closed)) == NAMES


def test_one_that_fails_while_it_waits_does_not_hold_up_the_others() -> None:
    closed: list[str] = []
    each, reports = compared(Stop(), closed, fails="b")
    assert sorted(of.stream_name for of, _, _ in reports) == ["a", "c", "d"]
    assert sorted(set(closed)) == NAMES
    with pytest.raises(StreamsFailed):
        each.expect_all()


def test_a_signal_ends_the_waiting_and_drops_the_shadows() -> None:
    closed: list[str] = []
    stop = Stop()
    _, reports = compared(stop, closed)
    next(reports)
    stop.request(signal.SIGINT)
    with pytest.raises(Stopped):
        list(reports)
    assert sorted(set(closed)) == NAMES
