"""One topic of many partitions, as a user runs it: ``python -m benchmarks partitions --partitions 1 100 1000``.

Under a steady load, spread over the partitions: inserts a second into the table, and the time from an event's making to
its insert (the server's clock when the insert begins). And for a job that is started again and finds events: seconds
from the start of its process to its first intent, and to the first rows.

``--backlog N``: then a job starts and finds so many events more in one partition, and the load goes on over the others
until these are read: how late the others' events are.

``--workers N``: the job runs on so many workers of one core, of a Spark standalone cluster on this machine, instead of
``local[2]``.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.steady import COLUMNS, Load, process_tree, processor_time, running_job
from ch_sink.clickhouse import ClickHouseSettings, Client, connect, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.cluster import cluster
from tests.support.state_tables import create_statement

__all__ = ["main"]

_TOPIC, _LATE = "wide.shop.t", "late"
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
    parser.add_argument(
        "--backlog", type=int, default=0, help="events of one partition that the others shall not wait for"
    )
    parser.add_argument("--workers", type=int, default=0, help="of a standalone cluster; without it, local[2]")
    parser.add_argument("--engine", choices=list(_ENGINES), default="replacing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks partitions", *arguments)
    print("\n  partitions      p50      p99  inserts/s  ledger/s    busy  first intent  first rows")
    with cluster(given.workers) if given.workers else nullcontext() as found:
        master = found.url if found else "local[2]"
        for partitions in given.partitions:
            with _running(partitions, given.engine, master) as place:
                print(_measure(place, given).line(), flush=True)
                if given.backlog:
                    print(_with_backlog(place, given), flush=True)
    return 0


@dataclass
class _Place:
    """A topic, its table, and the configuration of a job."""

    bootstrap: str
    partitions: int
    client: Client
    config: Path
    log: Path
    sent: int = 0
    """Events of the topic."""

    def load(self, partitions: Sequence[int], status: str = "paid") -> Load:
        return Load(self.bootstrap, [_TOPIC], partitions, self.sent, status)


@contextmanager
def _running(partitions: int, engine: str, master: str) -> Iterator[_Place]:
    with (
        LocalKafka(kind="kafka", lasting=True) as kafka,
        EmbeddedClickHouse() as clickhouse,
        tempfile.TemporaryDirectory() as folder,
    ):
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE wide")
        execute(client, [create_statement(name, "wide", f"ch_sink_{name}") for name in _STATES])
        client.command(
            f"CREATE TABLE wide.t {_ENGINES[engine]} ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
        )
        kafka.create_topic(_TOPIC, partitions)
        config = Path(folder) / "wide.yaml"
        config.write_text(
            f"kafka: {{topic: {_TOPIC}, bootstrap.servers: '{kafka.bootstrap}'}}\n"
            f"clickhouse: {{url: '{clickhouse.url}', database: wide, table: t}}\n"
            f"spark: {{master: '{master}', conf: {{spark.executor.memory: 600m}}}}\n",
            encoding="utf-8",
        )
        yield _Place(kafka.bootstrap, partitions, client, config, Path(folder) / "log")


def _measure(place: _Place, given: argparse.Namespace) -> Figures:
    client, load = place.client, place.load(range(place.partitions))
    load.spread(place.partitions)
    with running_job(place.config, place.log, given.overrides) as job:
        _wait(place, load.sent, job)
        load.steady(given.rate, given.warm_up)
        blocks, busy = _blocks(client), processor_time(process_tree(job.pid))
        start, began = time.time(), time.monotonic()
        load.steady(given.rate, given.seconds)
        took = time.monotonic() - began
        busy = (processor_time(process_tree(job.pid)) - busy) / took
        inserts = {name: (n - blocks[name]) / took for name, n in _blocks(client).items()}
        _wait(place, load.sent, job)
        p50, p99 = _quantiles(client, start)
    load.spread(place.partitions)
    began_at = time.time()
    with running_job(place.config, place.log, given.overrides) as job:
        _wait(place, load.sent, job)
        planned, first = _first(client, began_at)
    place.sent = load.sent
    return Figures(place.partitions, p50, p99, inserts["t"], inserts["ch_sink_ledger"], busy, planned, first)


def _with_backlog(place: _Place, given: argparse.Namespace) -> str:
    late = place.load([0], _LATE)
    late.spread(given.backlog)
    place.sent = late.sent
    load = place.load(range(1, place.partitions))
    with running_job(place.config, place.log, given.overrides) as job:
        while not _read(place):
            time.sleep(0.1)
        start, began, had = time.time(), time.monotonic(), _read(place)
        while (read := _read(place)) < given.backlog:
            load.steady(given.rate, 1.0)
        rate = (read - had) / (time.monotonic() - began)
        _wait(place, load.sent, job)
        p50, p99 = _quantiles(place.client, start)
    place.sent = load.sent
    return (
        f"  beside a backlog of {given.backlog:,} in one partition, read at {rate:,.0f} events/s: "
        f"p50 {p50:.2f} s, p99 {p99:.2f} s"
    )


def _read(place: _Place) -> int:
    """How much of the backlog is in the table."""
    return int(place.client.rows(f"SELECT count() AS n FROM wide.t WHERE status = '{_LATE}'")[0]["n"])


def _wait(place: _Place, rows: int, job: "subprocess.Popen[bytes]") -> None:
    """Wait until the table has so many rows. Raises RuntimeError if the job ends before."""
    while place.client.rows("SELECT count() AS n FROM wide.t FINAL")[0]["n"] < rows:
        if job.poll() is not None:
            raise RuntimeError(place.log.read_text(encoding="utf-8", errors="replace"))
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
