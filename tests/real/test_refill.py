"""`resync` of live tables: writers write, readers read, and the table equals its source in the end.

Real databases with real connectors that take no snapshot. 1,000,000 rows in PostgreSQL, 100,000 in MariaDB.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.real.conftest import Stand
from tests.real.sink import ends, init_and_check
from tests.support.live_job import LiveJob
from tests.support.sink import command, config_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

ROWS = {"postgres": 1_000_000, "mariadb": 100_000}
LOST = 50_000_000
"""From this id on rows were deleted in the source, and their deletes were lost."""
_LONG = "repeat(md5({}), 300)"
"""So long that PostgreSQL stores it outside the row, and its connector leaves it out where it is unchanged."""
_EXPECTED = ("deadlock", "duplicate", "Deadlock", "Duplicate", "Record has changed")


@dataclass
class Orders:
    """The source's table, its writers, and what it holds."""

    source: Any
    rows: int
    over: threading.Event = field(default_factory=threading.Event)
    done: list[int] = field(default_factory=lambda: [0, 0, 0])
    threads: list[threading.Thread] = field(default_factory=list)

    def make(self) -> None:
        series = (
            f"generate_series(1, {self.rows}) AS i"
            if self.source.name == "postgres"
            else f"(SELECT seq AS i FROM seq_1_to_{self.rows}) AS s"
        )
        with self.source.session() as cursor:
            cursor.execute(
                "CREATE TABLE orders (id INT PRIMARY KEY, n BIGINT NOT NULL, name VARCHAR(40), price NUMERIC(12, 2), "
                "note TEXT)"
            )
            # Every row of the first half is changed at most; of the other half rows leave, too.
            cursor.execute(
                "INSERT INTO orders SELECT i, i * 7, CASE WHEN i % 7 = 0 THEN NULL ELSE concat('name ', i) END, "
                f"i / 4.0, CASE WHEN i % 500 = 0 THEN {_LONG.format('concat(i)')} ELSE 'short' END FROM {series}"
            )

    def write(self, number: int) -> None:
        rng, connection = Random(number), self.source.connect()
        if self.source.name == "postgres":
            connection.autocommit = True
        half, new = self.rows // 2, 10_000_000 + number * 1_000_000
        while not self.over.wait(0.005):
            new += 1
            low, any_, high = rng.randint(1, half), rng.randint(1, self.rows), rng.randint(half + 500, self.rows)
            one = rng.choice(
                [
                    f"UPDATE orders SET n = n + 1 WHERE id = {any_}",
                    f"UPDATE orders SET n = n + 1 WHERE id = {any_ - any_ % 500 + 500}",
                    f"UPDATE orders SET name = 'changed {new}' WHERE id BETWEEN {low} AND {low + 5}",
                    f"INSERT INTO orders VALUES ({new}, 1, 'new', 1.5, 'note')",
                    f"DELETE FROM orders WHERE id = {high}",
                    f"DELETE FROM orders WHERE id = {new - rng.randint(1, 20)}",
                    f"UPDATE orders SET id = id + 20000000 WHERE id = {high - high % 500}",
                    f"UPDATE orders SET id = id + 20000000, n = n + 1 WHERE id = {high}",
                ]
            )
            try:
                with connection.cursor() as cursor:
                    cursor.execute(one)
                if self.source.name != "postgres":
                    connection.commit()
                self.done[number] += 1
            except Exception as error:
                if not any(text in str(error) for text in _EXPECTED):
                    raise
                connection.rollback()
        connection.close()

    @contextmanager
    def writers(self) -> Iterator[None]:
        self.threads = [threading.Thread(target=self.write, args=(n,), daemon=True) for n in range(3)]
        for thread in self.threads:
            thread.start()
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """The writers end; from then on the rows stay what they are."""
        self.over.set()
        for thread in self.threads:
            thread.join(60)

    def content(self) -> tuple[int, int]:
        """Number of rows, and a sum over their texts."""
        text = "concat(id, '|', n, '|', coalesce(name, '~'), '|', price, '|', note)"
        part = f"substr(md5({text}), 1, 8)"
        number = f"('x' || {part})::bit(32)::bigint" if self.source.name == "postgres" else f"conv({part}, 16, 10)"
        with self.source.session() as cursor:
            cursor.execute(f"SELECT count(*), sum({number}) FROM orders")
            count, total = cursor.fetchone()
        return int(count), int(total)


@dataclass
class Readers:
    """They poll the view; every answer has to show each row once."""

    client: Client
    view: str
    half: int
    answers: int = 0
    wrong: list[Any] = field(default_factory=list)

    def poll(self, over: threading.Event) -> None:
        while not over.wait(0.02):
            [seen] = self.client.rows(
                f"SELECT count() AS rows, uniqExact(id) AS ids, countIf(id <= {self.half}) AS old FROM {self.view}"
            )
            self.answers += 1
            if seen["rows"] != seen["ids"] or seen["old"] != self.half:
                self.wrong.append(seen)

    @contextmanager
    def reading(self) -> Iterator[None]:
        over = threading.Event()
        threads = [threading.Thread(target=self.poll, args=(over,), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(60)


def content(client: Client, view: str) -> tuple[int, int]:
    text = "concat(id, '|', n, '|', ifNull(name, '~'), '|', toString(price, 2), '|', note)"
    text = text.replace("toString(price, 2)", "toDecimalString(price, 2)")
    part = f"substring(lower(hex(MD5({text}))), 1, 8)"
    sql = f"SELECT count() AS rows, sum(reinterpretAsUInt32(reverse(unhex({part})))) AS total FROM {view}"
    [found] = client.rows(sql.replace("note)", "assumeNotNull(note))"))
    return int(found["rows"]), int(found["total"])


@pytest.mark.parametrize("name", ["postgres", "mariadb"])
def test_a_live_table_is_loaded_and_filled_anew_under_load(
    stand: Stand, clickhouse: EmbeddedClickHouse, client: Client, database: str, tmp_path: Path, name: str
) -> None:
    if name in stand.missing:
        pytest.skip(stand.missing[name])
    [source] = [s for s in stand.sources if s.name == name]
    orders = Orders(source, ROWS[name])
    orders.make()
    connector = f"refill_{name}"
    topic = f"{connector}.{source.qualified('orders')}"
    stand.connect.add(
        connector,
        {
            **source.connector(connector, 7, stand.kafka.bootstrap),
            "tasks.max": "1",
            "topic.prefix": connector,
            "table.include.list": source.qualified("orders"),
            "snapshot.mode": "no_data",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "3",
            **stand.formats["json"].converters,
        },
    )
    stand.connect.wait_until_running()
    scheme = "postgresql" if name == "postgres" else "mariadb"
    address = f"{scheme}://debezium:debezium@127.0.0.1:{source.port}/{source.database}"
    place = (topic, "orders", database)
    config = config_file(tmp_path, stand.kafka, clickhouse, *place, source={"url": address})
    view, figures = f"{database}.orders_current", {}
    with orders.writers():
        deadline = time.monotonic() + 180
        while not ends(stand.kafka.bootstrap, [topic])[topic]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        init_and_check(config)
        began = time.monotonic()
        done = command("resync", config, "--apply", "--json", timeout=900)
        assert done.returncode == 0, done.stderr
        figures["first load seconds"], figures["first load"] = time.monotonic() - began, json.loads(done.stdout)
        with LiveJob([config]) as job:
            readers = Readers(client, view, orders.rows // 2)
            with readers.reading():
                client.command(
                    f"INSERT INTO {database}.orders SELECT * REPLACE(id + {LOST} AS id) FROM {database}.orders "
                    "WHERE _is_deleted = 0 ORDER BY id LIMIT 500"
                )
                began = time.monotonic()
                done = command("resync", config, "--apply", "--json", "--patience", "120", timeout=900)
                assert done.returncode == 0, done.stderr
                figures["resync seconds"], figures["resync"] = time.monotonic() - began, json.loads(done.stdout)
                [lost] = client.rows(f"SELECT countIf(id >= {LOST}) AS n FROM {view}")
                assert lost["n"] == 0
                time.sleep(3)
            figures["answers"], figures["changes"] = readers.answers, orders.done
            orders.rest()
            wanted = orders.content()
            sys.stdout.write(f"{figures}\n")
            assert readers.wrong == []
            assert readers.answers > 20
            job.until(lambda: content(client, view) == wanted, 180)
    assert content(client, view) == wanted == orders.content()
    left = client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%ch_sink_next%'")
    assert left == []
