"""A job for a long time in rough weather: `python -m tests.soak_run --minutes 20 --out FILE [--svg FILE]`.

Real jobs (`ch_sink run`, with Spark) over real Kafka. Every few minutes another job takes the streams over, each third
time after the old one was killed; the server is killed or frozen; source tables get columns; keys move all the time. At
the end the tables must equal the source. FILE holds what happened and the lag over time, as JSON.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.errors import ChSinkError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.kill_run import struck
from tests.support.endpoint import settings_for
from tests.support.kafka import fresh_topic
from tests.support.lag_plot import plot
from tests.support.shop import RoughShop, changing

ENGINES = ("replacing", "collapsing", "versioned", "append")
_ON = """
import socket, sys
host = sys.argv.pop(1)
socket.gethostname = lambda: host
from ch_sink.cli import main
main()
"""
"""A job is another host's as far as it knows, or it would be refused while the first one is alive."""


@dataclass
class Weather:
    """What happened, with the seconds since the beginning."""

    began: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)
    lag: list[tuple[float, int]] = field(default_factory=list)

    def now(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def note(self, what: str) -> None:
        self.events.append((self.now(), what))


def main() -> None:
    """Run the command line."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--minutes", type=float, default=20.0)
    given.add_argument("--rate", type=float, default=25.0, help="transactions a second of each table")
    given.add_argument("--job", type=float, default=150.0, help="seconds between two jobs")
    given.add_argument("--server", type=float, default=45.0, help="seconds between two faults of the server")
    given.add_argument("--column", type=float, default=240.0, help="seconds between two new columns")
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--svg", type=Path, help="plot the lag into this file")
    chosen = given.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ch_sink-soak-")))
        broker = stack.enter_context(LocalKafka(path=folder / "kafka", kind="kafka"))
        endpoint = stack.enter_context(EmbeddedClickHouse())
        client = Client(settings_for(endpoint.url))
        client.command("CREATE DATABASE soak")
        shop = RoughShop(folder, broker, endpoint, client, "soak", fresh_topic("soak"))
        found = soak(shop, endpoint, chosen)
    chosen.out.write_text(json.dumps(found, default=str) + "\n")
    if chosen.svg:
        chosen.svg.write_text(plot(found["lag"], found["events"]), encoding="utf-8")
    print({k: v for k, v in found.items() if k not in ("lag", "events")})  # noqa: T201
    sys.exit(bool(found["wrong"]))


def soak(shop: RoughShop, endpoint: EmbeddedClickHouse, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run it; returns what happened, ``wrong`` being empty if all is well."""
    files = [shop.add(e, e, clickhouse={"timeout": 10, "connect_timeout": 2}) for e in ENGINES]
    weather, happened, end = Weather(), Counter[str](), threading.Event()
    jobs = _Jobs(files, weather, happened)
    others = [
        threading.Thread(target=_look, args=(shop, weather, end), daemon=True),
        threading.Thread(target=_columns, args=(shop, chosen.column, weather, end), daemon=True),
    ]
    try:
        with changing(shop, 1 / chosen.rate), struck(endpoint, chosen.server, "soak", happened, weather.note):
            for thread in others:
                thread.start()
            while weather.now() < chosen.minutes * 60:
                jobs.next()
                jobs.watch(min(chosen.job, chosen.minutes * 60 - weather.now()))
        changed_until = weather.now()
        wrong: Mapping[str, object] = {"not": "compared"}
        while wrong and weather.now() < changed_until + 600:
            time.sleep(2)
            with suppress(ChSinkError):
                wrong = shop.differences()
        caught_up = weather.now() - changed_until
    finally:
        end.set()
        jobs.stop()
    lag = [n for _, n in weather.lag]
    return {
        "wrong": {**wrong, **jobs.wrong},
        "records": shop.records,
        "seconds until equal at the end": caught_up,
        "lag in records, median and highest": (statistics.median(lag), max(lag)),
        **happened,
        "columns": len(shop.added),
        "lag": weather.lag,
        "events": weather.events,
    }


class _Jobs:
    """One job after the other, each of which takes over from the one before."""

    def __init__(self, files: Sequence[Path], weather: Weather, happened: Counter[str]) -> None:
        self.files, self.weather, self.happened = files, weather, happened
        self.wrong: dict[str, object] = {}
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._number = 0

    def next(self) -> None:
        """Start the next job; each third time the one before is killed first."""
        self._number += 1
        if self._running and self._number % 3 == 0:
            os.killpg(self._running[-1][1].pid, signal.SIGKILL)
            self.happened["jobs killed"] += 1
            self.weather.note("job killed")
        host = f"host-{self._number}"
        log = self.files[0].parent / f"{host}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", _ON, host, "run", *map(str, self.files), "--master", "local[2]"],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append((host, process))
        self.happened["jobs"] += 1
        self.weather.note("next job")

    def watch(self, seconds: float) -> None:
        """Wait so long; the newest job must live, and the others end by themselves."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.5)
            host, process = self._running[-1]
            if process.poll() is not None and host not in self.wrong:
                log = self.files[0].parent / f"{host}.log"
                self.wrong[host] = f"ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}"
        for host, process in self._running[:-1]:
            if process.poll() is None:
                # All its streams are another job's: it ends once it has seen so in each of them.
                self.wrong[host] = "goes on although another job has its streams"

    def stop(self) -> None:
        """SIGTERM, as a person does."""
        for _, process in self._running:
            if process.poll() is None:
                process.terminate()
        for _, process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _look(shop: RoughShop, weather: Weather, end: threading.Event) -> None:
    """Every two seconds, how many records the ledger is behind what was sent; none while ClickHouse is away."""
    client = Client(settings_for(shop.clickhouse.url, timeout=2.0, connect_timeout=1.0))
    while not end.wait(2):
        with suppress(ChSinkError):
            done = 0
            for table in list(shop.whole):
                ledger = ClickHouseLedger(client, shop.database, "ch_sink_ledger", table)
                done += sum(sum(ledger.progress(topic).values()) for topic in ledger.topic_ids())
            weather.lag.append((weather.now(), max(0, sum(shop.records.values()) - done)))


def _columns(shop: RoughShop, every: float, weather: Weather, end: threading.Event) -> None:
    while not end.wait(every):
        shop.add_column()
        weather.note("column")


if __name__ == "__main__":
    main()
