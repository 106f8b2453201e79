"""Many small streams: topics of JSON events (id, v), tables of each engine, and the rows that the events lead to."""

import json
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer

from ch_sink.clickhouse import Client, detect, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.policy import policy_of
from ch_sink.table.views import view_of
from tests.support.hand import APPEND, OWN, PLACEHOLDER, Event, key_change, mysql, postgres
from tests.support.state_tables import create_statement

STATE_TABLES = ("ledger", "dead_letters", "handover", "pending")


@dataclass
class Shop:
    """Streams by table name, in one database. ``rows``: table → key → value, as they should be."""

    folder: Path
    kafka: LocalKafka
    clickhouse: EmbeddedClickHouse
    client: Client
    database: str
    prefix: str
    rows: dict[str, dict[int, str]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Events per table."""
    _position: int = 100

    def __post_init__(self) -> None:
        # Sent in order and once, however long the broker is away.
        once = {"enable.idempotence": True, "message.timeout.ms": 0}
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5, **once})
        self._random = random.Random(self.prefix)
        execute(self.client, [create_statement(name, self.database, f"ch_sink_{name}") for name in STATE_TABLES])

    def add(self, table: str, engine: str = "replacing", *, partitions: int = 1, **more: Any) -> Path:
        """Make topic and table; returns the stream's file."""
        self.kafka.create_topic(self.topic(table), partitions)
        self.create(table, engine)
        self.rows[table], self.sent[table] = {}, 0
        return self.file(table, **more)

    def create(self, table: str, engine: str, columns: str = "") -> None:
        """Make the table and its view."""
        self.engines[table] = engine
        if engine == "log":
            self.client.command(f"CREATE TABLE {self.database}.{table} (id Int64, v Nullable(String)) ENGINE = Log")
            return
        clause, own = OWN.get(engine, APPEND)
        self.client.command(
            f"CREATE TABLE {self.database}.{table} (id Int64, v Nullable(String), {columns}{own}) ENGINE = {clause} "
            "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
        )
        self.client.command(view_of(detect(self.client, self.database, table, policy_of()), ("id",)))

    def drop(self, table: str) -> None:
        """Remove the table and its view."""
        self.client.command(f"DROP VIEW {self.database}.{table}_current SYNC")
        self.client.command(f"DROP TABLE {self.database}.{table} SYNC")

    def topic(self, table: str) -> str:
        return f"{self.prefix}.{table}"

    def file(self, table: str, **more: Any) -> Path:
        """Write the stream's file."""
        place = {"url": self.clickhouse.url, "database": self.database, "table": table, **more.pop("clickhouse", {})}
        settings: Mapping[str, Any] = {
            "kafka": {"topic": self.topic(table), "bootstrap.servers": self.kafka.bootstrap},
            "clickhouse": place,
            "stream": table,
            "trigger_interval": "200ms",
            **more,
        }
        path = self.folder / f"{table}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path

    def change(self, table: str, events: int = 1, **columns: Any) -> None:
        """Send so many drawn changes; ``columns`` are further ones of each row."""
        rows = self.rows[table]
        for _ in range(events):
            id_, drawn = self._random.randrange(20), self._random.random()
            old = {"id": id_, "v": rows[id_], **columns} if id_ in rows else None
            if old is not None and drawn < 0.2:
                del rows[id_]
                self.send(table, id_, "d", old, None)
                continue
            rows[id_] = f"{id_}-{self._position}"
            self.send(table, id_, "c" if old is None else "u", old, {"id": id_, "v": rows[id_], **columns})

    def snapshot(self, table: str) -> None:
        """Send all rows, and a delete for each key that may be left, as after a new snapshot."""
        for id_ in range(20):
            value = self.rows[table].get(id_)
            if value is None:
                self.send(table, id_, "d", {"id": id_, "v": None}, None)
            else:
                self.send(table, id_, "r", None, {"id": id_, "v": value})

    def send(self, table: str, id_: int, op: str, before: Any, after: Any) -> None:
        """Send one event."""
        self._position += 10
        event = mysql(op, {"id": id_}, before, after, self._position)
        self.send_bytes(table, json.dumps(event.key).encode(), json.dumps(event.value).encode())

    def send_bytes(self, table: str, key: bytes, value: bytes) -> None:
        """Send one record as it is."""
        self._producer.produce(self.topic(table), key=key, value=value)
        self.sent[table] += 1

    def flush(self) -> None:
        """Wait until the broker has all."""
        left = self._producer.flush(120)
        assert not left, f"{left} events were not sent"

    def differences(self) -> dict[str, object]:
        """Table → what differs from the rows that should be there; collapsing sums and append counts included."""
        return {table: found for table in self.rows if (found := self._difference(table)) is not None}

    def _difference(self, table: str) -> object:
        place, engine = f"{self.database}.{table}", self.engines[table]
        if engine == "log":
            return "has no view"
        found = {
            int(r["id"]): r["v"] for r in self.client.rows(f"SELECT id, CAST(v, 'String') AS v FROM {place}_current")
        }
        if found != self.rows[table]:
            return {
                "missing": sorted(self.rows[table].items() - found.items()),
                "extra": sorted(found.items() - self.rows[table].items()),
            }
        if engine in ("collapsing", "versioned"):
            return self.wrong_sums(table)
        if engine == "append":
            [counted] = self.client.rows(f"SELECT count() AS n, uniqExact(_version) AS u FROM {place}")
            events = self.sent[table]
            return None if (counted["n"], counted["u"]) == (events, events) else {**counted, "sent": events}
        return None

    def wrong_sums(self, table: str) -> object:
        """Keys whose signs do not sum to 0 or 1; None if there are none."""
        place = f"{self.database}.{table}"
        return self.client.rows(f"SELECT id, sum(_sign) AS s FROM {place} GROUP BY id HAVING s NOT IN (0, 1)") or None


@contextmanager
def changing(shop: Shop, every: float = 0.02) -> Iterator[None]:
    """Changes of all streams go on meanwhile."""
    end = threading.Event()

    def change() -> None:
        while not end.wait(every):
            for table in list(shop.rows):  # one may be added meanwhile
                shop.change(table)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        shop.flush()


_KEYS = 60


@dataclass
class RoughShop(Shop):
    """A Shop with such tables; ``whole`` has their rows: table → key → row."""

    whole: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Columns of all tables that were not there at first."""
    records: dict[str, int] = field(default_factory=dict)
    """Records per topic, tombstones included."""
    _lsn: int = 1_000
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def add(self, table: str, engine: str = "replacing", *, partitions: int = 3, **more: Any) -> Path:
        file = super().add(table, engine, partitions=partitions, evolve="add_columns", **more)
        self.records[table] = 0
        self.whole[table] = {}  # from now on it changes
        return file

    def create(self, table: str, engine: str, columns: str = "") -> None:
        super().create(table, engine, f"big Nullable(String), {columns}")

    def add_column(self) -> None:
        """All source tables get another column; rows have NULL there until they are updated."""
        with self._guard:
            self.added.append(f"c{len(self.added) + 1}")
            for rows in self.whole.values():
                for row in rows.values():
                    row[self.added[-1]] = None

    def change(self, table: str, events: int = 1, **_: Any) -> None:
        with self._guard:
            for _ in range(events if table in self.whole else 0):
                self._transaction(table)

    def _transaction(self, table: str) -> None:
        rows, drawn = self.whole[table], self._random.random()
        self._lsn += 100
        commit, lsn = self._lsn - 70, self._lsn
        id_ = self._random.randrange(_KEYS)
        old = rows.get(id_)
        if old is None:
            rows[id_] = self._row(id_, f"big {id_} {lsn} " + "x" * 200)
            self._post(table, [postgres("c", {"id": id_}, None, rows[id_], commit, lsn)])
            return
        gone = dict.fromkeys(old, None) | {"id": id_}
        if drawn < 0.15:
            del rows[id_]
            deleted = postgres("d", {"id": id_}, gone, None, commit, lsn)
            self._post(table, [deleted, Event({"id": id_}, None)])
            return
        free = [k for k in range(_KEYS) if k not in rows]
        moves = drawn < 0.4 and bool(free)
        to = self._random.choice(free) if moves else id_
        kept = self._random.random() < 0.7
        row = self._row(to, old["big"] if kept else f"big {to} {lsn} " + "y" * 200)
        after = {**row, "big": PLACEHOLDER} if kept else row
        rows[to] = row
        if not moves:
            self._post(table, [postgres("u", {"id": id_}, None, after, commit, lsn)])
            return
        del rows[id_]
        left = postgres("d", {"id": id_}, gone, None, commit, lsn)
        self._post(table, key_change(left, postgres("c", {"id": to}, None, after, commit, lsn)))

    def _row(self, id_: int, big: str) -> dict[str, Any]:
        more = {name: self._lsn if self._random.random() < 0.8 else None for name in self.added}
        return {"id": id_, "v": f"{id_}-{self._lsn}", "big": big, **more}

    def _post(self, table: str, events: list[Event]) -> None:
        for event in events:
            value = None if event.value is None else json.dumps(event.value).encode()
            headers = list(event.headers or [])
            self._producer.produce(
                self.topic(table), key=json.dumps(event.key).encode(), value=value, headers=headers or None
            )
            self.records[table] += 1
            self.sent[table] += value is not None
        self._producer.poll(0)

    def _difference(self, table: str) -> object:
        place, engine = f"{self.database}.{table}", self.engines[table]
        found = {int(r["id"]): dict(r) for r in self.client.rows(f"SELECT * FROM {place}_current")}
        # A column in which no event has had a value yet is not in the table.
        wanted = {k: {n: v for n, v in row.items() if v is not None} for k, row in self.whole[table].items()}
        have = {k: {n: v for n, v in row.items() if v is not None} for k, row in found.items()}
        if have != wanted:
            keys = sorted(k for k in have.keys() | wanted.keys() if have.get(k) != wanted.get(k))
            return {k: {"is": have.get(k), "should be": wanted.get(k)} for k in keys[:3]} | {"keys": len(keys)}
        return self._stored_wrong(table, engine)

    def _stored_wrong(self, table: str, engine: str) -> object:
        """What is wrong with the signs or the number of rows."""
        if engine in ("collapsing", "versioned"):
            return self.wrong_sums(table)
        if engine == "append":
            [counted] = self.client.rows(f"SELECT count() AS n FROM {self.database}.{table}")
            return None if counted["n"] == self.sent[table] else {**counted, "sent": self.sent[table]}
        return None
