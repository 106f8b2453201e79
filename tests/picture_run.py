"""Takes the pictures of the page for docs/images: ``python -m tests.picture_run [--minutes 60]``.

A real job carries eight topics of a shop, at rates that change: one of them is paused, one gets a record that cannot be
applied, one a column that its table lacks, and one is verified. The browser then shows what the job's page has.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.steady import COLUMNS, running_job
from ch_sink.clickhouse import ClickHouseSettings, connect, execute
from ch_sink.local import free_port
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.real.stand.browser import Browser
from tests.support.state_tables import create_statement

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
RATES = {
    "orders": 180, "order_items": 420, "payments": 90, "customers": 12,
    "inventory": 60, "shipments": 40, "reviews": 6, "audit_log": 25,
}  # fmt: skip
"""Table → events a second, on average."""
WAVES = {"orders": 90.0, "inventory": 40.0, "order_items": 150.0}
"""Table → seconds in which its rate rises and falls; that of the others is steady."""


class Shop:
    """Produces changes of the shop's rows."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        self._rng, self._position = random.Random(7), 0
        self._sent = dict.fromkeys(RATES, 0)

    def second(self, number: int) -> None:
        """The changes of one second, spread over it."""
        began = time.monotonic()
        for tenth in range(10):
            for table, rate in RATES.items():
                wave = 1 + 0.8 * math.sin(2 * math.pi * number / WAVES[table]) if table in WAVES else 1.0
                for _ in range(round(rate * wave * self._rng.uniform(0.8, 1.2) / 10 + self._rng.random() - 0.5)):
                    self.change(table)
            self._producer.poll(0)
            time.sleep(max(0.0, began + (tenth + 1) / 10 - time.monotonic()))

    def change(self, table: str, **more: object) -> None:
        """A row is created, or changes."""
        self._position, self._sent[table] = self._position + 100, self._sent[table] + 1
        newest = self._sent[table]
        key = newest if self._rng.random() < 0.6 else self._rng.randrange(newest) + 1
        ms = time.time_ns() // 10**6
        row = {"id": key, "status": self._rng.choice(["new", "paid", "sent"]), "made": ms, **more}
        source = {"connector": "mysql", "name": "shop", "ts_ms": ms, "snapshot": "false", "db": "shop", "table": table}
        source |= {"server_id": 1, "gtid": None, "file": "binlog.000003", "pos": self._position, "row": 0}
        event = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": ms}
        self._producer.produce(f"shop.public.{table}", json.dumps(event), json.dumps({"id": key}))

    def flush(self) -> None:
        self._producer.flush(30)


def shoot(browser: Browser, name: str, width: int, height: int, *, dark: bool = False) -> None:
    """Keep a picture of the window at this size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.devtools("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.devtools("Emulation.setScrollbarsHidden", {"hidden": True})
    time.sleep(2.5)  # the page asks again, and draws
    (IMAGES / f"{name}.png").write_bytes(browser.screenshot())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.picture_run")
    parser.add_argument("--minutes", type=float, default=60.0, help="an hour fills the plots")
    given = parser.parse_args(arguments)
    page = f"127.0.0.1:{free_port()}"
    with LocalKafka(kind="kafka") as kafka, EmbeddedClickHouse() as clickhouse, tempfile.TemporaryDirectory() as folder:
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE shop")
        execute(
            client,
            [create_statement(n, "shop", f"ch_sink_{n}") for n in ("ledger", "dead_letters", "handover", "pending")],
        )
        for table in RATES:
            kafka.create_topic(f"shop.public.{table}", 1)
            client.command(
                f"CREATE TABLE shop.{table} ({COLUMNS}) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id "
                "SETTINGS non_replicated_deduplication_window = 1000"
            )
        config = Path(folder) / "shop.yaml"
        config.write_text(
            f"kafka: {{topics: 'shop\\.public\\..*', bootstrap.servers: '{kafka.bootstrap}'}}\n"
            f"clickhouse: {{url: '{clickhouse.url}', database: shop, table: '{{table}}'}}\n"
            "spark: {master: 'local[2]'}\n",
            encoding="utf-8",
        )

        def command(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "ch_sink", *words], cwd=IMAGES.parents[1], check=False)

        shop = Shop(kafka.bootstrap)
        seconds = int(given.minutes * 60)
        with running_job(config, Path(folder) / "log", [], "--ui", page):
            for number in range(seconds):
                shop.second(number)
                if number == seconds // 2:
                    shop.change("reviews", made="soon")
                if number == seconds * 2 // 3:
                    shop.change("payments", currency="EUR")
                if number == seconds * 3 // 4:
                    command("pause", str(config), "--only", "shop.public.audit_log")
                if number == seconds - 30:
                    command("verify", str(config), "--only", "shop.public.customers")
            shop.flush()
            with Browser() as browser:
                browser.open(f"http://{page}/")
                browser.until(f"document.querySelectorAll('#streams tbody tr').length === {len(RATES)}")
                shoot(browser, "overview-light", 1400, 780)
                shoot(browser, "overview-dark", 1400, 780, dark=True)
                shoot(browser, "overview-narrow-dark", 400, 800, dark=True)
                browser.run("location.hash = '#/stream/' + encodeURIComponent('shop.public.orders:shop.orders')")
                browser.until("!document.querySelector('#stream').hidden")
                shoot(browser, "stream-light", 1400, 900)


if __name__ == "__main__":
    main(sys.argv[1:])
