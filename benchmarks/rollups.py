"""``python -m benchmarks rollups``: what two rollups cost a job, and what they save their readers.

The same changes go through coordinator, tasks and writer into two collapsing tables, one of them with two rollups: half
of the changes create rows, the others update them. Given is the processor time of this process and of the server, which
other work on the machine disturbs least. Then a table of ``--stored`` rows is grouped under FINAL, and its rollup read.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.engines import processor_seconds
from benchmarks.machine import describe
from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHouseLedger,
    ClickHousePending,
    ClickHouseSettings,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    connect,
    execute,
)
from ch_sink.decode import decoder_for
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence
from ch_sink.stream.ports import StreamSettings
from ch_sink.table.rollup import RollupChoice
from tests.support.local_runner import LocalBatch, LocalPorts, LocalRunner
from tests.support.memory_stream import MemoryGroup, MemoryTopic
from tests.support.state_tables import create_statement

COLUMNS = "id Int64, day Date32, country String, amount Int64, items Int32, status String, _sign Int8, _version UInt128"
ROLLUPS = (
    RollupChoice(
        "by_day",
        (("day", "day"), ("country", "country")),
        sums=(("amount", "amount"), ("items", "items")),
        count="orders",
        where="status != 'draft'",
    ),
    RollupChoice("by_country", (("country", "country"),), avgs=(("mean", "amount"),), count="orders"),
)
POLICY = policy_of()
STATE = ("ledger", "handover", "pending", "dead_letters")


def changes(count: int) -> Records:
    """Creates, then updates of rows drawn at random."""
    rng = random.Random(1)
    values, keys = [], []
    for n in range(count):
        key = n if n < count // 2 else rng.randrange(count // 2)
        row = {
            "id": key,
            "day": 20_000 + key % 400,
            "country": f"country {key % 60}",
            "amount": rng.randrange(10**6),
            "items": n % 9,
            "status": "draft" if n % 10 == 0 else "paid",
        }
        source = {"connector": "mysql", "name": "shop", "ts_ms": n, "file": "b.000001", "pos": n, "row": 0}
        event = {"before": None, "after": row, "source": source, "op": "c" if n < count // 2 else "u", "ts_ms": n}
        values.append(json.dumps(event, separators=(",", ":")).encode())
        keys.append(json.dumps({"id": key}).encode())
    offsets = np.arange(count, dtype=np.int64)
    return Records("shop.orders", 0, offsets, offsets, keys, values, None)


def run(client: Client, table: str, rollups: tuple[RollupChoice, ...], records: Records, chunk: int) -> None:
    """All records into a new table."""
    client.command(
        f"CREATE TABLE b.{table} ({COLUMNS}) ENGINE = CollapsingMergeTree(_sign) ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    topic = MemoryTopic(records.topic, {0: records})
    ports = LocalPorts(
        open_ledger=lambda: ClickHouseLedger(client, "b", "ledger", table),
        admin=ClickHouseTableAdmin(client, "b", table, POLICY, rollups=rollups),
        topics=topic,
        group=MemoryGroup(),
        pending=ClickHousePending(client, "b", "pending", table),
        dead_letters=ClickHouseDeadLetters(client, "b", "dead_letters", table, topic.topic_id),
        writer=lambda now: ClickHouseWriter(client, now),
        lookup=lambda now: AnyKeyLookup(client, now),
        handover=lambda now: ClickHouseHandover(client, "b", "handover", table, now),
        decoder=lambda now, want: decoder_for(now, POLICY, want_before=want),
        records=topic.read,
    )
    runner = LocalRunner(StreamSettings(table, topic.name, POLICY, chunk_offsets=chunk), ports)
    runner.run([LocalBatch({0: (0, len(records))})])
    runner.stop()


def measured(server: int, work: "tuple[object, ...]") -> float:
    """Processor seconds of this process and of the server."""
    before = time.process_time() + processor_seconds(server)
    run(*work)  # type: ignore[arg-type]
    return time.process_time() + processor_seconds(server) - before


def reads(client: Client, server: int, stored: int) -> None:
    """Groups under FINAL against the rollup's view."""
    client.command(
        f"CREATE TABLE b.big ({COLUMNS}) ENGINE = CollapsingMergeTree(_sign) ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    client.command(
        "INSERT INTO b.big SELECT number, 20000 + number % 400, concat('country ', toString(number % 60)), "
        "cityHash64(number) % 1000000, number % 9, if(number % 10 = 0, 'draft', 'paid'), 1, number "
        f"FROM numbers({stored})"
    )
    admin = ClickHouseTableAdmin(client, "b", "big", POLICY, rollups=(ROLLUPS[0],))
    ledger = ClickHouseLedger(client, "b", "ledger", "big")

    def supersede() -> list[Fence]:
        return [ledger.begin("id", 0, claim, "rollups")]

    client.command("DROP TABLE IF EXISTS b.by_day SYNC")
    client.command("DROP VIEW IF EXISTS b.by_day_current")
    claim = ledger.claim("benchmark")
    admin.fill_rollups(admin.detect(), supersede, doubtful=True)
    grouped = (
        "SELECT day, country, sum(amount) AS amount, sum(items) AS items, count() AS orders FROM b.big FINAL "
        "WHERE _sign > 0 AND status != 'draft' GROUP BY day, country"
    )
    spent = {}
    for name, sql in (("GROUP BY under FINAL", grouped), ("the rollup", "SELECT * FROM b.by_day_current")):
        before = processor_seconds(server)
        for _ in range(3):
            client.rows(f"SELECT sum(cityHash64(*)) AS n FROM ({sql})")
        spent[name] = (processor_seconds(server) - before) / 3
        print(f"{name:<22} {spent[name]:>8.3f} s of processor time")
    slow, fast = spent.values()
    print(f"{'':<22} {slow / max(fast, 0.001):>8.0f} times")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rollups")
    parser.add_argument("--changes", type=int, default=1_600_000)
    parser.add_argument("--chunk", type=int, default=50_000, help="offsets of a chunk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stored", type=int, default=10_000_000, help="rows of the table that is read")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    records = changes(given.changes)
    with EmbeddedClickHouse() as clickhouse:
        client = connect(ClickHouseSettings(url=clickhouse.url))
        assert clickhouse.pid is not None
        client.command("CREATE DATABASE b")
        execute(client, [create_statement(name, "b", name) for name in STATE])
        print(f"{given.changes} changes in chunks of {given.chunk}; seconds of processor time\n")
        print(f"{'round':>5} {'without':>9} {'with two':>9} {'more':>7}")
        for number in range(given.rounds + 1):  # the first warms up
            spent = []
            for rollups in ((), ROLLUPS):
                work = (client, f"t{number}_{len(rollups)}", rollups, records, given.chunk)
                spent.append(measured(clickhouse.pid, work))
                for name in ("by_day", "by_country"):
                    client.command(f"DROP TABLE IF EXISTS b.{name} SYNC")
                    client.command(f"DROP VIEW IF EXISTS b.{name}_current")
            if number:
                print(f"{number:>5} {spent[0]:>9.2f} {spent[1]:>9.2f} {spent[1] / spent[0] - 1:>7.1%}", flush=True)
        reads(client, clickhouse.pid, given.stored)
