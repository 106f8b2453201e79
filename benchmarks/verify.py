"""``verify`` of one large table against PostgreSQL: time, processor seconds and memory by part.

``python -m benchmarks verify --rows 10000000 --parallel 2``. The rows are made by SQL on both sides, so that nothing
but the comparison is measured; the stream has applied a short topic before.
"""

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.machine import describe
from ch_sink.clickhouse import ClickHouseSettings, connect
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.real.stand.postgres import PostgreSQL
from tests.support.hand import postgres
from tests.support.kafka import produce, recorded
from tests.support.sink import config_file, inside, run_inline

__all__ = ["main"]

_TOPIC = "bench.public.orders"
_DDL = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, status VARCHAR(20), amount NUMERIC(12,2), "
    "note TEXT, created TIMESTAMP(6), changed TIMESTAMPTZ, paid BOOLEAN)"
)
_FILL = (
    "INSERT INTO orders SELECT i, i % 1000, 'shipped', (i % 100000) / 100.0, 'note number ' || i || ' of this table', "
    "'2024-01-01'::timestamp + i * interval '1 second', '2024-01-01'::timestamptz + i * interval '1 second', i % 2 = 0 "
    "FROM generate_series({first}, {last}) i"
)
_TARGET = (
    "CREATE TABLE bench.orders (id Int64, customer Int32, status Nullable(String), amount Nullable(Decimal(12, 2)), "
    "note Nullable(String), created Nullable(DateTime64(6, 'UTC')), changed Nullable(DateTime64(6, 'UTC')), "
    "paid Nullable(Bool), _version UInt128, _is_deleted UInt8) "
    "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
)
_EQUAL = (
    "INSERT INTO bench.orders SELECT number + 1 AS i, i % 1000, 'shipped', toDecimal64(i % 100000, 2) / 100, "
    "concat('note number ', toString(i), ' of this table'), "
    "addSeconds(toDateTime64('2024-01-01 00:00:00', 6, 'UTC'), i), "
    "addSeconds(toDateTime64('2024-01-01 00:00:00', 6, 'UTC'), i), i % 2 = 0, 1, 0 FROM numbers({first}, {many})"
)


class Peak:
    """The most memory that a process and its descendants have had together, in MiB."""

    def __init__(self, pid: int) -> None:
        self.most, self._pid, self._over = 0.0, pid, threading.Event()
        self._others = set(_descendants(pid))
        """Servers that this process has started."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self.most

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.most = max(self.most, sum(map(_resident, [self._pid, *_descendants(self._pid, self._others)])))


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def _descendants(pid: int, without: Collection[int] = ()) -> list[int]:
    try:
        text = " ".join(p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    children = [int(word) for word in text.split() if int(word) not in without]
    return [*children, *(d for child in children for d in _descendants(child, without))]


def _processor(pid: int) -> float:
    """Seconds of a process, its descendants, and those that they have waited for."""
    total = 0
    for one in [pid, *_descendants(pid)]:
        try:
            total += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return total / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks verify")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 2], help="processes that read the database")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks verify", *arguments)
    source = PostgreSQL()
    source.start()
    try:
        with (
            LocalKafka(kind="mock") as kafka,
            EmbeddedClickHouse() as clickhouse,
            tempfile.TemporaryDirectory() as made,
        ):
            client = connect(ClickHouseSettings(url=clickhouse.url))
            client.command("CREATE DATABASE bench")
            client.command(_TARGET)
            kafka.create_topic(_TOPIC, 1)
            rows = [{"id": i, "customer": i, "status": "shipped", "amount": f"{i / 100:.2f}"} for i in range(1, 11)]
            events = [postgres("r", {"id": r["id"]}, None, r, 1000, 1000) for r in rows]
            produce(kafka, recorded(_TOPIC, events), _TOPIC)
            address = f"postgresql://debezium:debezium@127.0.0.1:{source.port}/{source.database}"
            config = config_file(
                Path(made), kafka, clickhouse, _TOPIC, "orders", "bench",
                decimal_handling="string", source={"url": address},
            )  # fmt: skip
            inside("init", config, "--apply")
            run_inline(config)
            client.command("TRUNCATE TABLE bench.orders")
            with source.session() as cursor:
                cursor.execute(_DDL)
                cursor.execute(_FILL.format(first=1, last=given.rows))
            with source.connect() as connection:
                connection.autocommit = True
                connection.execute("VACUUM ANALYZE orders")
            for first in range(0, given.rows, 1_000_000):
                client.command(_EQUAL.format(first=first, many=min(1_000_000, given.rows - first)))
            postmaster = Path(f"{source.folder}/data/postmaster.pid")
            print(f"\n{given.rows:,} rows of eight columns; seconds, and MiB at the most")
            print(
                "  processes      time  rows/s    ch_sink   ClickHouse   PostgreSQL   memory of ch_sink  of ClickHouse"
            )
            for processes in given.parallel:
                _measure(config, processes, given.rows, int(postmaster.read_text().split()[0]), clickhouse.pid or 0)
    finally:
        source.stop()
    return 0


def _measure(config: Path, processes: int, rows: int, postgres: int, clickhouse: int) -> None:
    clocks: dict[str, Callable[[], float]] = {
        "sink": _own,
        "clickhouse": lambda: _processor(clickhouse),
        "postgres": lambda: _processor(postgres),
    }
    before = {name: clock() for name, clock in clocks.items()}
    mine, server = Peak(os.getpid()), Peak(clickhouse)
    began = time.monotonic()
    done = inside("verify", config, "--json", "--parallel", str(processes), "--patience", "1")
    seconds = time.monotonic() - began
    memory, memory_of_server = mine.end(), server.end()
    used = {name: clock() - before[name] for name, clock in clocks.items()}
    if done.returncode != 0:
        print(done.stdout[:2000], done.stderr[:2000], file=sys.stderr)
        raise SystemExit("the tables are not equal")
    print(
        f"  {processes:9}  {seconds:6.1f} s  {rows / seconds:6,.0f}  {used['sink']:7.1f} s  {used['clickhouse']:9.1f} s"
        f"  {used['postgres']:9.1f} s  {memory:14.0f} MiB  {memory_of_server:9.0f} MiB",
        flush=True,
    )
