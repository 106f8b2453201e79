"""``python -m benchmarks ledger``: what a stream asks of its ledger in every batch, as the ledger gets older.

One stream of many writes a batch every ``--seconds``; the days pass at once: their intents and results are inserted
as the stream would have written them, day by day, and folded by the product as the days go by. The other streams of
the ledger hold what folding leaves of a year.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.machine import describe
from ch_sink.clickhouse import ClickHouseLedger, ClickHouseSettings, Client, connect, execute
from ch_sink.clickhouse.ledger_folds import LedgerFolds
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.ports import FinishedRange, RangeIntent
from ch_sink.stream.summaries import KEEP
from tests.support.state_tables import create_statement

DAY = 86_400
STATE = '{"sources":{"shop":{"epoch":0,"commit":123456789012,"seen":["' + "x" * 400 + '"]}}}'


OTHERS = 199


def insert(client: Client, entry: str, first: int, batches: int, seconds: float, day: float, others: int = 0) -> None:
    """Insert batches that end on this day of the year, of the stream that is measured, or of so many others."""
    end = time.time() - (365 - day) * DAY
    stream = f"concat('stream-', toString(intDiv(number, {batches})))" if others else "'orders'"
    client.command(
        "INSERT INTO shop.ledger (stream, entry, topic, topic_id, partition, start_offset, end_offset, batch, "
        "claim_number, written, run_id, chunk_offsets, rows, deletes, counts, state, started, finished) "
        f"SELECT stream, '{entry}', 'shop.orders', 'id', 0, n * 10, n * 10 + 10, at, 1, at, 'run', 50000, 10, 1, "
        f"map('upserts', 9), '{'' if entry == 'intent' else STATE}', "
        "fromUnixTimestamp64Nano(toInt64(at)), fromUnixTimestamp64Nano(toInt64(at)) FROM "
        f"(SELECT {first} + number % {batches} AS n, {stream} AS stream, "
        f"toUInt64({int(end * 1e9)} - ({first + batches} - n) * {int(seconds * 1e9)}) AS at "
        f"FROM numbers({batches * (others or 1)}))"
    )


def others(client: Client) -> None:
    """What folding leaves of a year of the other streams."""
    for entry in ("intent", "result"):
        insert(client, entry, 3_000_000, KEEP + KEEP // 2, 1.0, 365, OTHERS)
    insert(client, "summary", 0, 46, DAY, 365, OTHERS)


def median(ask: Callable[[ClickHouseLedger, int], object], ledger: ClickHouseLedger, end: int) -> float:
    """Median milliseconds of a call."""
    taken = []
    for _ in range(15):
        began = time.perf_counter()
        ask(ledger, end)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger")
    parser.add_argument("--seconds", type=float, default=60.0, help="between two batches")
    parser.add_argument("--days", default="1,10,30,100,200,365")
    parser.add_argument("--never-fold", action="store_true", help="the same without folding")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    per_day = round(DAY / given.seconds)
    print(f"a batch every {given.seconds:g} s, {OTHERS} other streams; milliseconds, median of 15\n")
    print(f"{'day':>4} {'rows':>10} {'kept':>9} {'fold s':>8}", *(f"{n:>9}" for n in QUESTIONS))
    with EmbeddedClickHouse() as clickhouse:
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE shop")
        execute(client, [create_statement("ledger", "shop", "ledger")])
        others(client)
        ledger = ClickHouseLedger(client, "shop", "ledger", "orders")
        ledger.claim("run")
        day = 0
        for until in map(int, given.days.split(",")):
            folding = 0.0
            while day < until:
                step = min(until - day, max(1, 20_000 // per_day))
                for entry in ("intent", "result"):
                    insert(client, entry, day * per_day, step * per_day, given.seconds, day + step)
                day += step
                began = time.perf_counter()
                if not given.never_fold:
                    ledger.folds = LedgerFolds(ledger)  # which counts the results again
                    while ledger.fold():
                        pass
                folding += time.perf_counter() - began
            kept = client.rows("SELECT count() AS n FROM shop.ledger WHERE stream = 'orders'")[0]["n"]
            taken = [median(ask, ledger, day * per_day * 10) for ask in QUESTIONS.values()]
            row = f"{day:>4} {day * per_day * 2:>10,} {kept:>9,} {folding:>8.1f}"
            print(row, *(f"{ms:>9.1f}" for ms in taken), flush=True)


def batch(ledger: ClickHouseLedger, end: int) -> None:
    ledger.intents([RangeIntent("shop.orders", "other", 0, end, end + 10)])
    ledger.results([FinishedRange("shop.orders", "other", 0, end, end + 10, state=STATE)])


QUESTIONS: dict[str, Callable[[ClickHouseLedger, int], object]] = {
    "claim": lambda ledger, _: ledger.check_claim(),
    "batch": batch,
    "progress": lambda ledger, _: ledger.progress("id"),
    "open": lambda ledger, _: ledger.open_intents("id"),
    "state": lambda ledger, end: ledger.state_at("id", 0, end),
    "totals": lambda ledger, _: ledger.totals(),
    "history": lambda ledger, _: ledger.history(1),
    "topics": lambda ledger, _: ledger.topic_ids(),
}
