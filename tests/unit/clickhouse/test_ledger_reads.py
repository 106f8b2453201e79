"""What is asked in every batch reads a bounded part of the ledger, however long the stream has run."""

from collections.abc import Iterator

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, execute
from ch_sink.clickhouse import ledger as ask
from ch_sink.clickhouse.ledger_folds import RESULTS_BY_PLACE, SUMMARIES
from ch_sink.clickhouse.ledger_table import NEWEST_CLAIM, PROGRESS_OF
from ch_sink.ports import FinishedRange
from ch_sink.stream.summaries import KEEP
from tests.support.state_tables import create_statement

pytestmark = pytest.mark.integration

BATCHES = 200_000
FEW = 30_000
GRANULE = 8_192
"""Rows that are read at least, whatever the question."""


@pytest.fixture(scope="module")
def ledger(client: Client) -> Iterator[ClickHouseLedger]:
    """A ledger of two streams with an intent and a result per batch, and a claim per thousand batches."""
    database = "long_ledger"
    client.command(f"CREATE DATABASE {database}")
    execute(client, [create_statement("ledger", database, "ledger")])
    for stream, batches in (("one", BATCHES), ("two", FEW)):
        for entry in ("intent", "result"):
            client.command(
                f"INSERT INTO {database}.ledger (stream, entry, topic_id, partition, start_offset, end_offset, batch, "
                "claim_number, written, state) "
                f"SELECT '{stream}', '{entry}', 'id', number % 4, number * 10, number * 10 + 10, number, "
                f"1 + intDiv(number, 1000), number, concat('state ', number) FROM numbers({batches})"
            )
        client.command(
            f"INSERT INTO {database}.ledger (stream, entry, claim_number, fact) "
            f'SELECT \'{stream}\', \'claim\', number + 1, \'{{"host": "h", "pid": 1, "born": ""}}\' '
            f"FROM numbers({BATCHES // 1000})"
        )
    client.command(f"OPTIMIZE TABLE {database}.ledger FINAL")
    yield ClickHouseLedger(client, database, "ledger", "one")
    client.command(f"DROP DATABASE {database}")


def rows_read(ledger: ClickHouseLedger, sql: str, **parameters: object) -> int:
    return sum(int(r["rows"]) for r in ledger.ask(f"EXPLAIN ESTIMATE {sql}", **parameters))


@pytest.mark.long
def test_a_claim_check_reads_the_claims_of_the_stream(ledger: ClickHouseLedger) -> None:
    assert rows_read(ledger, NEWEST_CLAIM) <= 2 * GRANULE
    ledger.claim("later")
    newest = ledger.newest_claim()
    assert (newest.number, newest.run_id) == (BATCHES // 1000 + 1, "later")


def test_overlaps_and_progress_read_the_neighbourhood_of_the_range(ledger: ClickHouseLedger) -> None:
    place = {"topic_id": "id", "partition": 1}
    assert rows_read(ledger, PROGRESS_OF, start=(BATCHES - 3) * 10, **place) <= 2 * GRANULE
    assert rows_read(ledger, ask.LAST_STATES, ranges=[("id", 1, (BATCHES - 3) * 10)]) <= 2 * GRANULE


def test_totals_and_history_are_right_in_a_long_ledger(ledger: ClickHouseLedger) -> None:
    assert [(t.partition, t.next_offset, t.state) for t in ledger.totals()] == [
        (p, (BATCHES - 3 + p) * 10, f"state {BATCHES - 4 + p}") for p in range(4)
    ]
    newest = FinishedRange(
        "", "id", 3, BATCHES * 10 - 10, BATCHES * 10, state=f"state {BATCHES - 1}", batch=BATCHES - 1
    )
    assert ledger.history(1) == [newest]


@pytest.mark.long
def test_what_a_folded_ledger_is_asked_reads_no_more_than_a_young_one(client: Client) -> None:
    """Also what a start and `status` ask, which look at every result that is left."""
    ledger = ClickHouseLedger(client, "long_ledger", "ledger", "two")
    before, progress = ledger.totals(), ledger.progress("id")
    ledger.claim("later")
    folded = 0
    while n := ledger.fold():
        folded += n
    assert folded == FEW - 4 * KEEP
    client.command("OPTIMIZE TABLE long_ledger.ledger FINAL")
    asked: dict[str, dict[str, object]] = {
        NEWEST_CLAIM: {},
        ask.INTENDED: {},
        ask.PROGRESS: {"topic_id": "id"},
        ask.OPEN_INTENTS: {"topic_id": "id"},
        ask.STATES_AT: {"topic_id": "id", "places": [(1, 10)]},
        ask.TOPIC_IDS: {},
        ask.TOTALS: {"covered": []},
        SUMMARIES: {},
        RESULTS_BY_PLACE: {},
    }
    read = {sql: rows_read(ledger, sql, **parameters) for sql, parameters in asked.items()}
    assert {sql: n for sql, n in read.items() if n > 2 * GRANULE} == {}
    assert (ledger.totals(), ledger.progress("id")) == (before, progress)
    kept = client.rows("SELECT entry, count() AS n FROM long_ledger.ledger WHERE stream = 'two' GROUP BY entry")
    assert {r["entry"]: r["n"] for r in kept} == {"claim": 21, "intent": 4 * KEEP, "result": 4 * KEEP, "summary": 4}
