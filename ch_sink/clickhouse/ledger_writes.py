"""Writes of many streams to one ledger table: one look at their claims, and one insert."""

from collections.abc import Sequence

from ch_sink.clickhouse import ledger_queries as ask
from ch_sink.clickhouse.ledger import ClickHouseLedger, Row, insert_rows
from ch_sink.clickhouse.ledger_rows import claim_of
from ch_sink.errors import ChSinkError
from ch_sink.ports import Claim
from ch_sink.stream.rounds import Intend, Record, Write, Written, write_each

__all__ = ["write_together"]


def write_together(writes: Sequence[Write]) -> list[Written]:
    """Write them all, those to the same table at once; see WriteAll. A stream appears once."""
    tables: dict[tuple[int, str], list[int]] = {}
    found: dict[int, Written] = {}
    for number, write in enumerate(writes):
        if isinstance(write.ledger, ClickHouseLedger):
            table = write.ledger.table
            tables.setdefault((id(table.client), table.qualified), []).append(number)
        else:
            [found[number]] = write_each([write])
    for numbers in tables.values():
        some = [writes[number] for number in numbers]
        found |= zip(numbers, write_each(some) if len(some) == 1 else _at_once(some), strict=True)
    return [found[number] for number in range(len(writes))]


def _at_once(writes: Sequence[Write]) -> list[Written]:
    ledgers = [ledger for write in writes if isinstance(ledger := write.ledger, ClickHouseLedger)]
    answers: list[Written] = [None] * len(writes)
    rows: list[Row] = []
    accepted: list[int] = []
    try:
        claims = _newest_claims(ledgers)
        for number, (ledger, write) in enumerate(zip(ledgers, writes, strict=True)):
            try:
                ledger.expect_mine(claims.get(ledger.stream))
                if isinstance(write, Intend):
                    answers[number], own = ledger.intent_rows(write.ranges)
                else:
                    own = ledger.result_rows(write.results)
            except ChSinkError as error:
                answers[number] = error
            else:
                rows += own
                accepted.append(number)
        insert_rows(ledgers[0].table, rows)
    except ChSinkError as error:
        return [answer if isinstance(answer, ChSinkError) else error for answer in answers]
    for number in accepted:
        write, answer = writes[number], answers[number]
        if isinstance(write, Intend) and isinstance(answer, list):
            ledgers[number].intended(answer)
        elif isinstance(write, Record):
            ledgers[number].finished(write.results)
    return answers


def _newest_claims(ledgers: Sequence[ClickHouseLedger]) -> dict[str, Claim]:
    rows = ledgers[0].table.rows(ask.NEWEST_CLAIMS, streams=[ledger.stream for ledger in ledgers])
    return {str(row["stream"]): claim_of(row) for row in rows}
