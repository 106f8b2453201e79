"""One job of many topics, as a user runs it: ``python -m benchmarks fleet --topics 10 50 200``.

For each number of topics: seconds until each table has its first rows, memory and processes of the job, its processor
time while nothing happens, and, under a steady load spread over all topics, the time from an event's making to its
insert (the server's clock when the insert begins) and the inserts a minute.
"""

import argparse
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.steady import COLUMNS, Load, process_tree, processor_time, running_job
from ch_sink.clickhouse import ClickHouseSettings, Client, connect, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.state_tables import create_statement

__all__ = ["main"]

_STATES = ("ledger", "dead_letters", "handover", "pending")


@dataclass(frozen=True)
class Fleet:
    """The figures of one number of topics; times in seconds, memory in MiB."""

    topics: int
    first: float
    memory: float
    processes: int
    idle: float
    """Share of one core."""
    p50: float
    p99: float
    inserts: float
    """A minute."""
    busy: float
    """Share of one core under the steady load."""

    def line(self) -> str:
        return (
            f"  {self.topics:6}  {self.first:10.1f} s  {self.memory:8.0f} MiB  {self.processes:9}  {self.idle:8.1%}  "
            f"{self.p50:7.2f} s  {self.p99:7.2f} s  {self.inserts:10.0f}  {self.busy:8.1%}"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fleet")
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--rate", type=int, default=1000, help="events a second over all topics")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the steady load, and of the idle time")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of the load that come before")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks fleet", *arguments)
    print("\n  topics  first batch        memory  processes      idle      p50        p99  inserts/min  under load")
    for topics in given.topics:
        print(_measure(topics, given.rate, given.seconds, given.warm_up, given.overrides).line(), flush=True)
    return 0


def _measure(topics: int, rate: int, seconds: float, warm_up: float, overrides: list[str]) -> Fleet:
    with (
        LocalKafka(kind="kafka", lasting=True) as kafka,
        EmbeddedClickHouse() as clickhouse,
        tempfile.TemporaryDirectory() as folder,
    ):
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE fleet")
        execute(client, [create_statement(name, "fleet", f"ch_sink_{name}") for name in _STATES])
        for number in range(topics):
            kafka.create_topic(f"fleet.shop.t{number}", 1)
            client.command(
                f"CREATE TABLE fleet.t{number} ({COLUMNS}) ENGINE = ReplacingMergeTree(_version, _is_deleted) "
                "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
            )
        load = Load(kafka.bootstrap, [f"fleet.shop.t{number}" for number in range(topics)])
        load.spread(10 * topics)
        config = Path(folder) / "fleet.yaml"
        config.write_text(
            f"kafka: {{topics: 'fleet\\.shop\\..*', bootstrap.servers: '{kafka.bootstrap}'}}\n"
            f"clickhouse: {{url: '{clickhouse.url}', database: fleet, table: '{{table}}'}}\n"
            "spark: {master: 'local[2]'}\n",
            encoding="utf-8",
        )
        began = time.monotonic()
        with running_job(config, Path(folder) / "log", overrides) as job:
            _until_filled(client, topics, job, Path(folder) / "log")
            first = time.monotonic() - began
            time.sleep(3.0)
            tree = process_tree(job.pid)
            before, at = processor_time(tree), time.monotonic()
            time.sleep(seconds)
            idle = (processor_time(tree) - before) / (time.monotonic() - at)
            load.steady(rate, warm_up)
            before, at = processor_time(process_tree(job.pid)), time.monotonic()
            start = time.time()
            load.steady(rate, seconds)
            tree = process_tree(job.pid)
            busy = (processor_time(tree) - before) / (time.monotonic() - at)
            memory, processes = _memory(tree), len(tree)
            late, inserts = _latencies(client, topics, start, load.sent)
        return Fleet(
            topics,
            first,
            memory,
            processes,
            idle,
            late[len(late) // 2],
            late[len(late) * 99 // 100],
            inserts * 60 / seconds,
            busy,
        )


def _until_filled(client: Client, topics: int, job: "subprocess.Popen[bytes]", log: Path) -> None:
    missing = set(range(topics))
    while missing:
        if job.poll() is not None:
            raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))
        filled = _rows(
            client, "SELECT DISTINCT table FROM system.parts WHERE database = 'fleet' AND active AND rows > 0"
        )
        missing -= {int(row["table"][1:]) for row in filled if row["table"][1:].isdigit()}
        time.sleep(0.1 if topics < 20 else 0.5)  # the question costs the server more, the more tables there are


def _latencies(client: Client, topics: int, start: float, sent: int) -> tuple[list[float], int]:
    """Sorted seconds from making to insert of the events since ``start``, and the number of inserts."""
    late: list[float] = []
    inserts, deadline = 0, time.monotonic() + 60
    while True:
        done = sum(_rows(client, f"SELECT count() AS n FROM fleet.t{n}")[0]["n"] for n in range(topics))
        if done >= sent or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for number in range(topics):
        found = _rows(
            client,
            "SELECT groupArray(toInt64(toUnixTimestamp64Milli(seen)) - made) AS late, uniqExact(seen) AS inserts "
            f"FROM fleet.t{number} WHERE made >= {int(start * 1000)}",
        )[0]
        late += [ms / 1000 for ms in found["late"]]
        inserts += found["inserts"]
    return sorted(late), inserts


def _rows(client: Client, sql: str) -> list[dict[str, Any]]:
    return client.rows(sql)


def _memory(tree: list[int]) -> float:
    """Proportional resident memory: pages that processes share count once."""
    kib = 0
    for process in tree:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024
