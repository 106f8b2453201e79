"""One topic of many partitions, as a user runs it: ``python -m benchmarks partitions --partitions 1 100 1000``.

Under a steady load, spread over the partitions: inserts a second into the table, and the time from an event's making to
its insert (the server's clock when the insert begins). And for a job that is started again and finds events: seconds
from the start of its process to its first intent, and to the first rows.
"""

import argparse
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.steady import COLUMNS, Load, process_tree, processor_time, running_job
from ch_sink.clickhouse import ClickHouseSettings, Client, connect, create_statement, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka

__all__ = ["main"]

_STATES = ("ledger", "dead_letters", "handover", "pending")
_ENGINES = {
    "replacing": f"({COLUMNS}) ENGINE = ReplacingMergeTree(_version, _is_deleted)",
    "collapsing": f"({COLUMNS.partition(', _version')[0]}, _sign Int8) ENGINE = CollapsingMergeTree(_sign)",
}


@dataclass(frozen=True)
class Figures:
    """Of one number of partitions; times in seconds."""

    partitions: int
    p50: float
    p99: float
    inserts: float
    """A second, into the table."""
    ledger: float
    """A second, into the ledger."""
    busy: float
    """Share of one core."""
    planned: float
    first: float

    def line(self) -> str:
        return (
            f"  {self.partitions:10}  {self.p50:5.2f} s  {self.p99:5.2f} s  {self.inserts:9.1f}  {self.ledger:8.1f}  "
            f"{self.busy:6.0%}  {self.planned:12.1f} s  {self.first:8.1f} s"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks partitions")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--rate", type=int, default=200, help="events a second over all partitions")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the load")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds of the load that come before")
    parser.add_argument("--engine", choices=list(_ENGINES), default="replacing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks partitions", *arguments)
    print("\n  partitions      p50      p99  inserts/s  ledger/s    busy  first intent  first rows")
    for partitions in given.partitions:
        print(_measure(partitions, given).line(), flush=True)
    return 0


def _measure(partitions: int, given: argparse.Namespace) -> Figures:
    with (
        LocalKafka(kind="kafka", lasting=True) as kafka,
        EmbeddedClickHouse() as clickhouse,
        tempfile.TemporaryDirectory() as folder,
    ):
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE wide")
        execute(client, [create_statement(name, "wide", f"ch_sink_{name}") for name in _STATES])
        client.command(
            f"CREATE TABLE wide.t {_ENGINES[given.engine]} ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        kafka.create_topic("wide.shop.t", partitions)
        load = Load(kafka.bootstrap, ["wide.shop.t"], partitions)
        load.spread(partitions)
        config, log = Path(folder) / "wide.yaml", Path(folder) / "log"
        config.write_text(
            f"kafka: {{topic: wide.shop.t, bootstrap.servers: '{kafka.bootstrap}'}}\n"
            f"clickhouse: {{url: '{clickhouse.url}', database: wide, table: t}}\n"
            "spark: {master: 'local[2]'}\n",
            encoding="utf-8",
        )
        with running_job(config, log, given.overrides) as job:
            _wait(client, load.sent, job, log)
            load.steady(given.rate, given.warm_up)
            blocks, busy = _blocks(client), processor_time(process_tree(job.pid))
            start, began = time.time(), time.monotonic()
            load.steady(given.rate, given.seconds)
            took = time.monotonic() - began
            busy = (processor_time(process_tree(job.pid)) - busy) / took
            inserts = {name: (n - blocks[name]) / took for name, n in _blocks(client).items()}
            _wait(client, load.sent, job, log)
            p50, p99 = _quantiles(client, start)
        load.spread(partitions)
        began_at = time.time()
        with running_job(config, log, given.overrides) as job:
            _wait(client, load.sent, job, log)
            planned, first = _first(client, began_at)
        return Figures(partitions, p50, p99, inserts["t"], inserts["ch_sink_ledger"], busy, planned, first)


def _wait(client: Client, rows: int, job: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the table has so many rows. Raises RuntimeError if the job ends before."""
    while client.rows("SELECT count() AS n FROM wide.t FINAL")[0]["n"] < rows:
        if job.poll() is not None:
            raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))
        time.sleep(0.5)


def _blocks(client: Client) -> dict[str, int]:
    """Table → how many blocks were inserted into it; merges keep the numbers."""
    found = client.rows(
        "SELECT table, max(max_block_number) AS n FROM system.parts WHERE database = 'wide' GROUP BY table"
    )
    return {str(row["table"]): int(row["n"]) for row in found}


def _quantiles(client: Client, start: float) -> tuple[float, float]:
    """p50 and p99 of the seconds from making to insert, of the events since ``start``."""
    [row] = client.rows(
        "SELECT quantilesExact(0.5, 0.99)(toUnixTimestamp64Milli(seen) - made) AS late FROM wide.t "
        f"WHERE made >= {int(start * 1000)}"
    )
    p50, p99 = row["late"]
    return p50 / 1000, p99 / 1000


def _first(client: Client, start: float) -> tuple[float, float]:
    """Seconds from ``start`` to the first intent and to the first rows."""
    [planned] = client.rows(
        f"SELECT min(written) AS at FROM wide.ch_sink_ledger WHERE entry = 'intent' AND written > {int(start * 1e9)}"
    )
    [first] = client.rows(
        "SELECT min(toUnixTimestamp64Milli(seen)) AS at FROM wide.t "
        f"WHERE toUnixTimestamp64Milli(seen) >= {int(start * 1000)}"
    )
    return int(planned["at"]) / 1e9 - start, int(first["at"]) / 1e3 - start
