"""Hand-written events into a table of the real engine: a few lines a test."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHousePending,
    ClickHouseWriter,
    Client,
    detect,
)
from ch_sink.decode import decoder_for
from ch_sink.model.change import Headers, Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Attempt, PartitionSink, Stores, open_sink
from ch_sink.pipeline.plans import Applied, Ports, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.ports import DeadLetters, Insert
from ch_sink.table.ddl import truncate_statement
from ch_sink.table.views import view_of
from tests.support.kills import Killed

Row = Mapping[str, Any]
PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class Event:
    """One record: key and value as JSON, headers as they are."""

    key: Row | None
    value: Row | None
    headers: Headers | None = None


def mysql(op: str, key: Row | None, before: Row | None, after: Row | None, pos: int, **source: Any) -> Event:
    """A change as the MySQL connector sends it; ``file``, ``row``, ``ts_ms`` and others through ``source``."""
    block = {"connector": "mysql", "name": "my", "ts_ms": 1_657_655_632_000, "snapshot": "false", "db": "sbtest"}
    block |= {"file": "mysql-bin.000003", "pos": pos, "row": 0, **source}
    return Event(key, {"before": before, "after": after, "source": block, "op": op, "ts_ms": 1_657_655_632_066})


def postgres(op: str, key: Row | None, before: Row | None, after: Row | None, commit: int | None, lsn: int) -> Event:
    """A change as the PostgreSQL connector sends it."""
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)])
    block = {"connector": "postgresql", "name": "pg", "ts_ms": 1_657_655_632_000, "snapshot": "false", "db": "shop"}
    block |= {"lsn": lsn, "sequence": sequence}
    return Event(key, {"before": before, "after": after, "source": block, "op": op, "ts_ms": 1_657_655_632_066})


def key_change(delete: Event, create: Event) -> list[Event]:
    """Delete half, tombstone, create half, with their headers."""
    new = [("__debezium.newkey", json.dumps(create.key).encode())]
    old = [("__debezium.oldkey", json.dumps(delete.key).encode())]
    return [
        Event(delete.key, delete.value, new),
        Event(delete.key, None, new),
        Event(create.key, create.value, old),
    ]


def records_of(events: Sequence[Event], first: int = 0, partition: int = 0, sent: int = 0) -> Records:
    """The events at offsets from ``first`` on."""
    return _records(partition, list(enumerate(events, start=first)), sent)


def _records(partition: int, placed: Sequence[tuple[int, Event]], sent: int = 0) -> Records:
    return Records(
        "t",
        partition,
        np.array([offset for offset, _ in placed], dtype=np.int64),
        np.full(len(placed), sent, dtype=np.int64),
        [None if e.key is None else json.dumps(e.key).encode() for _, e in placed],
        [None if e.value is None else json.dumps(e.value).encode() for _, e in placed],
        [e.headers for _, e in placed],
    )


class HandFed:
    """One topic of some partitions into one new table.

    ``ddl``: columns and everything from ENGINE on, as in CREATE TABLE. ``write`` can be made to die.
    """

    def __init__(
        self,
        client: Client,
        database: str,
        own_tables: str,
        ddl: str,
        key: tuple[str, ...],
        policy: Policy | None = None,
    ) -> None:
        self.client, self.policy = client, policy or policy_of(truncate="apply", on_bad_record="fail")
        self.name, self.own, self.key = f"{database}.t", own_tables, key
        client.command(f"CREATE TABLE {self.name} {ddl}")
        self.look_again()

    def look_again(self) -> None:
        """Detect the table, renew its view, and begin the stream again."""
        self.table = detect(self.client, self.name.partition(".")[0], "t", self.policy)
        self.client.command(view_of(self.table, self.key))
        self.target = Target.of(self.table, self.policy)
        self.log: dict[int, list[tuple[int, Event]]] = {}
        self.states: dict[int, State] = {}
        self.truncated = State()
        self.sinks: dict[int, PartitionSink] = {}
        self.letters: DeadLetters = ClickHouseDeadLetters(
            self.client, self.own, "dead_letters", f"hand/{self.name}", "id"
        )
        self.attempt = 0
        self.kill_after: int | None = None
        self.lookups = 0

    def feed(self, events: Sequence[Event], partition: int = 0, *, cut: int = 10**9) -> list[Applied]:
        """Append the events to the partition and apply them, in chunks of ``cut`` records."""
        log = self.log.setdefault(partition, [])
        start = len(log)
        log += [(start + i, event) for i, event in enumerate(events)]
        done: list[Applied] = []
        while start < len(log):
            done += self.apply(partition, start, min(start + cut, len(log)))
            start = done[-1].end
        return done

    def apply(self, partition: int, start: int, end: int) -> list[Applied]:
        """Apply the partition's offsets [start, end); barriers are carried out."""
        done = []
        while start < end:
            chunk = Chunk(start, end, self._records(partition, start, end))
            state = self.states.get(partition, State(alone=not self.key)).with_floors_of(self.truncated)
            one = self.sink(partition).apply(chunk, state)
            self.states[partition] = one.state
            if one.barrier is not None and one.barrier.kind == "truncate":
                self.client.command(truncate_statement(self.table, one.barrier.version, self.target.system.version))
                self.truncated = self.truncated.with_floor(one.barrier.floor, one.barrier.source)
            if one.barrier is not None and one.barrier.kind == "key_form":  # the partitions are fed one after the other
                self.states[partition] = one.state.rewritten(*one.barrier.key_form)
            done.append(one)
            start = one.end
        return done

    def again(self, partition: int, start: int, end: int, state: State) -> list[Applied]:
        """A second attempt by a new process, from the state at ``start``."""
        self.restart()
        self.states[partition] = state
        return self.apply(partition, start, end)

    def restart(self) -> None:
        self.sinks.clear()
        self.attempt += 1
        self.kill_after = None

    def drain(self) -> None:
        for partition, sink in self.sinks.items():
            sink.retry_pending(self.states[partition].with_floors_of(self.truncated), below=1 << 62)

    def sink(self, partition: int) -> PartitionSink:
        if partition not in self.sinks:
            stream = f"hand/{self.name}"
            self.sinks[partition] = open_sink(
                StreamName(stream, "t", "id", partition, self.attempt),
                self.target,
                lambda want: decoder_for(self.table, self.policy, want_before=want),
                Ports(
                    self,
                    ClickHouseHandover(self.client, self.own, "handover", stream, self.table),
                    _Past(self, partition),
                ),
                Stores(self, self.letters, ClickHousePending(self.client, self.own, "pending", stream)),
                Attempt(deadline=1e9),
            )
        return self.sinks[partition]

    def fetch(self, keys: Any, below: Any = None) -> Any:
        self.lookups += 1
        return AnyKeyLookup(self.client, self.table).fetch(keys, below)

    def write(self, insert: Insert, token: str, **options: Any) -> int:
        if self.kill_after is not None:
            if self.kill_after == 0:
                raise Killed
            self.kill_after -= 1
        return ClickHouseWriter(self.client, self.table).write(insert, token, **options)

    def view(self) -> list[tuple[Any, ...]]:
        """The current state, sorted."""
        return sorted((tuple(r.values()) for r in self.client.rows(f"SELECT * FROM {self.name}_current")), key=repr)

    def query(self, sql: str, **settings: Any) -> list[tuple[Any, ...]]:
        """A query in which ``{t}`` is the table."""
        return [tuple(r.values()) for r in self.client.rows(sql.replace("{t}", self.name), settings=settings)]

    def merge(self) -> None:
        self.client.command(f"OPTIMIZE TABLE {self.name} FINAL")

    def _records(self, partition: int, start: int, end: int) -> Records:
        return _records(partition, [(o, e) for o, e in self.log[partition] if start <= o < end])


class _Past:
    def __init__(self, fed: HandFed, partition: int) -> None:
        self.fed, self.partition = fed, partition

    def before(self, offset: int, limit: int) -> Records:
        return self.fed._records(self.partition, max(0, offset - limit), offset)


_WINDOW = "SETTINGS non_replicated_deduplication_window = "
WINDOW = f"{_WINDOW}1000"
OWN = {
    "replacing": ("ReplacingMergeTree(_version, _is_deleted)", "_version UInt128, _is_deleted UInt8"),
    "sign": ("ReplacingMergeTree(_version)", "_version UInt128, _sign Int8"),
    "collapsing": ("CollapsingMergeTree(_sign)", "_sign Int8, _version UInt128"),
    "versioned": ("VersionedCollapsingMergeTree(_sign, _version)", "_sign Int8, _version UInt128"),
}
ENGINES = tuple(OWN)
"""The engines that hold a table's current state."""
COLLAPSING = ("collapsing", "versioned")
APPEND = ("MergeTree", "_op LowCardinality(String), _sign Int8, _version UInt128, _source_time DateTime64(3)")
Make = Callable[..., HandFed]


@pytest.fixture
def make(client: Client, database: str, own_tables: str) -> Make:
    """A table (id, v) of an engine or ``append``; ``more`` columns, ORDER BY and PARTITION BY as wanted."""

    def made(
        engine: str,
        *,
        more: str = "",
        order: str = "id",
        tail: str = "",
        ttl: str = "",
        window: int = 1000,
        policy: Policy | None = None,
    ) -> HandFed:
        clause, own = OWN.get(engine, APPEND)
        columns = f"id Int64, v Nullable(String){', ' + more if more else ''}"
        ddl = f"({columns}, {own}) ENGINE = {clause} {tail} ORDER BY ({order}) {ttl} {_WINDOW}{window}"
        return HandFed(client, database, own_tables, ddl, ("id",), policy)

    return made


def row(id_: int, v: str | None, **more: Any) -> dict[str, Any]:
    return {"id": id_, "v": v, **more}


def key(id_: int) -> dict[str, int]:
    return {"id": id_}


def insert(id_: int, v: str | None, pos: int, **more: Any) -> Event:
    return mysql("c", key(id_), None, row(id_, v, **more), pos)


def update(before: dict[str, Any], after: dict[str, Any], pos: int, **source: Any) -> Event:
    return mysql("u", key(after["id"]), before, after, pos, **source)


def delete(before: dict[str, Any], pos: int) -> Event:
    return mysql("d", key(before["id"]), before, None, pos)


def signs(fed: HandFed) -> list[tuple[Any, ...]]:
    return fed.query("SELECT id, toInt64(sum(_sign)) FROM {t} GROUP BY id ORDER BY id")


each_engine = pytest.mark.parametrize("engine", ENGINES)
each_collapsing = pytest.mark.parametrize("engine", COLLAPSING)
