"""What is asked in every batch reads a bounded part of the ledger, however long the stream has run."""

from collections.abc import Iterator

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, create_statement, execute
from ch_sink.clickhouse import ledger_queries as ask
from ch_sink.ports import FinishedRange

pytestmark = pytest.mark.integration

BATCHES = 200_000
GRANULE = 8_192
"""Rows that are read at least, whatever the question."""


@pytest.fixture(scope="module")
def ledger(client: Client) -> Iterator[ClickHouseLedger]:
    """A ledger of two streams with an intent and a result per batch, and a claim per thousand batches."""
    database = "long_ledger"
    client.command(f"CREATE DATABASE {database}")
    execute(client, [create_statement("ledger", database, "ledger")])
    for stream in ("one", "two"):
        for entry in ("intent", "result"):
            client.command(
                f"INSERT INTO {database}.ledger (stream, entry, topic_id, partition, start_offset, end_offset, batch, "
                "claim_number, written, state) "
                f"SELECT '{stream}', '{entry}', 'id', number % 4, number * 10, number * 10 + 10, number, "
                f"1 + intDiv(number, 1000), number, concat('state ', number) FROM numbers({BATCHES})"
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
    return sum(int(r["rows"]) for r in ledger._rows(f"EXPLAIN ESTIMATE {sql}", **parameters))


def test_a_claim_check_reads_the_claims_of_the_stream(ledger: ClickHouseLedger) -> None:
    assert rows_read(ledger, ask.NEWEST_CLAIM) <= 2 * GRANULE
    ledger.claim("later")
    newest = ledger._newest()
    assert newest is not None
    assert (newest.number, newest.run_id) == (BATCHES // 1000 + 1, "later")


def test_overlaps_and_progress_read_the_neighbourhood_of_the_range(ledger: ClickHouseLedger) -> None:
    place = {"topic_id": "id", "partition": 1}
    assert rows_read(ledger, ask.PROGRESS_OF, start=(BATCHES - 3) * 10, **place) <= 2 * GRANULE
    assert rows_read(ledger, ask.LAST_STATES, ranges=[("id", 1, (BATCHES - 3) * 10)]) <= 2 * GRANULE


def test_totals_and_history_are_right_in_a_long_ledger(ledger: ClickHouseLedger) -> None:
    assert [(t.partition, t.next_offset, t.state) for t in ledger.totals()] == [
        (p, (BATCHES - 3 + p) * 10, f"state {BATCHES - 4 + p}") for p in range(4)
    ]
    newest = FinishedRange(
        "", "id", 3, BATCHES * 10 - 10, BATCHES * 10, state=f"state {BATCHES - 1}", batch=BATCHES - 1
    )
    assert ledger.history(1) == [newest]
