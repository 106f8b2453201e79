"""Ledgers of both kinds for jobs on one stream, what is written to them, and what a later job asks."""

from collections.abc import Callable
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.memory import MemoryLedger
from ch_sink.model.counts import Counts
from ch_sink.ports import (
    Claim,
    FinishedRange,
    RangeIntent,
)
from tests.support.views import counts_of

Job = Callable[[], Any]


@pytest.fixture(params=["memory", "clickhouse"])
def job(request: pytest.FixtureRequest) -> Job:
    """Makes the ledger of one more job on the same stream."""
    name = request.getfixturevalue("stream")
    if request.param == "memory":
        first = MemoryLedger(name)
        return lambda: MemoryLedger(name, beside=first)
    client: Client = request.getfixturevalue("client")
    database = request.getfixturevalue("own_tables")
    return lambda: ClickHouseLedger(client, database, "ledger", name)


@pytest.fixture(params=["memory", "clickhouse"])
def short(request: pytest.FixtureRequest) -> Job:
    """Makes the ledger of one more job that folds all but the last two results of a partition."""
    name = request.getfixturevalue("stream")
    if request.param == "memory":
        first = MemoryLedger(name)
        first.keep(2)
        return lambda: MemoryLedger(name, beside=first)
    client: Client = request.getfixturevalue("client")
    database = request.getfixturevalue("own_tables")
    return lambda: ClickHouseLedger(client, database, "ledger", name, keep=2)


def intent(start: int, end: int, partition: int = 0, topic_id: str = "t1") -> RangeIntent:
    return RangeIntent("shop.orders", topic_id, partition, start, end, 50_000, 1 << 26)


def result(
    start: int, end: int, partition: int = 0, topic_id: str = "t1", counts: Counts | None = None, **changes: Any
) -> FinishedRange:
    counts = counts or Counts()
    counts.source_time = 1_700_000_000_123
    base: dict[str, Any] = {"state": f'{{"end":{end}}}', "started": 1.5, "finished": 2.25, "counts": counts}
    return FinishedRange("shop.orders", topic_id, partition, start, end, **{**base, **changes})


def run_batches(ledger: Any, first: int, last: int, partitions: int = 2, **changes: Any) -> None:
    """Batches of ten offsets of each partition, from number ``first`` up to ``last``: written at once, to be quick."""
    ranges = [(n * 10, n * 10 + 10, p) for n in range(first, last) for p in range(partitions)]
    ledger.intents([intent(*r) for r in ranges])
    ledger.results([result(*r, counts=counts_of(0, 7, 2, deletes=1, a=1), **changes) for r in ranges])


def known(ledger: Any, offsets: int = 400) -> dict[str, Any]:
    """What a later job asks of a ledger."""
    newest = ledger.progress("t1")
    return {
        "progress": newest,
        "state": {p: ledger.states_at("t1", {p: end}).get(p) for p, end in newest.items()},
        "totals": ledger.totals(),
        "topics": ledger.topic_ids(),
        "open": ledger.open_intents("t1"),
        "newest": ledger.history(2),
        "steps": [ledger.steps("t1", p) for p in newest],
    }


def plant(ledger: Any, claim: Claim) -> None:
    """The stream is another process's from now on."""
    if isinstance(ledger, MemoryLedger):
        ledger._book.claims.append(claim)
    else:
        ledger.insert([claim])
