"""A model of a source and its topic, for random sequences of commands: what the table has to be after each of them."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ch_sink.model.change import Headers, Records
from ch_sink.table.model import TargetTable
from tests.support.hand import PLACEHOLDER, Event, Row, key, key_change, mysql, postgres, row
from tests.support.stream import Altered

Rows = dict[int, str | None]
FILE = 3
"""Number of the binary log's file in which the positions are."""
BAD = b'{"broken'


def full(id_: int, v: str | None) -> dict[str, Any]:
    """A row; its number follows from its text."""
    return row(id_, v, n=300 if v is not None and v.endswith("!") else 7)


def applied(rows: Rows, records: Iterable["Record"]) -> Rows:
    """The rows that these records leave, in their order."""
    for r in records:
        if r.empties:
            rows.clear()
        elif r.gone:
            rows.pop(r.id, None)
        else:
            rows[r.id] = r.value
    return rows


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the topic. ``effect``: key and value of the row that it leaves, ``gone`` if it leaves none."""

    event: Event
    seq: int
    time: int
    id: int = 0
    value: str | None = None
    gone: bool = False
    effective: bool = True
    """False for tombstones and what cannot be applied."""
    bad: bool = False
    empties: bool = False
    """A truncate: no row is left."""

    @property
    def wide(self) -> bool:
        """Whether it states a number that does not fit the column as it was created."""
        value = self.event.value or {}
        return any(((value.get(side) or {}).get("n") or 0) > 255 for side in ("before", "after"))

    @property
    def former(self) -> int | None:
        """The key that the row had before it changed its key by this record."""
        stated = dict(self.event.headers or ()).get("__debezium.oldkey")
        return None if stated is None else int(json.loads(stated)["id"])

    @property
    def raw(self) -> tuple[bytes | None, bytes | None, Headers | None]:
        e = self.event
        name = None if e.key is None else json.dumps(e.key).encode()
        value = BAD if self.bad else None if e.value is None else json.dumps(e.value).encode()
        return name, value, e.headers


@dataclass
class Shop:
    """A table of a database, and the topic of its changes."""

    partitions: int
    clock: int
    rows: Rows = field(default_factory=dict)
    log: dict[int, list[Record]] = field(default_factory=dict)
    low: dict[int, int] = field(default_factory=dict)
    sent: list[Record] = field(default_factory=list)
    """What the connector has sent, in its order; without what it has sent again."""
    pos: int = 5000
    file: int = FILE
    seq: int = 0
    ever: set[int] = field(default_factory=set)
    born: int = 0
    """Value number."""
    wide: float = 0.0
    """How many of the values come with a number that the column cannot hold."""
    pg: bool = False
    """Whether the source is PostgreSQL, whose events leave values out that did not change."""
    again: set[int] = field(default_factory=set)
    """Keys of records that were sent again and of which not all may have been read."""

    sent_again: set[int] = field(default_factory=set)
    """Keys of all records that were ever sent again."""

    def __post_init__(self) -> None:
        self.add_partitions(self.partitions)

    def add_partitions(self, count: int) -> None:
        self.partitions = count
        for p in range(count):
            self.log.setdefault(p, [])
            self.low.setdefault(p, 0)

    @property
    def ends(self) -> dict[int, int]:
        return {p: len(records) for p, records in self.log.items()}

    def home(self, id_: int) -> int:
        return id_ * 7 % 13 % self.partitions

    def records(self, p: int) -> Records:
        """What the topic holds of a partition."""
        low = self.low[p]
        held = self.log[p][low:]
        raw = [r.raw for r in held]
        return Records(
            "t", p,
            np.arange(low, low + len(held), dtype=np.int64),
            np.array([r.time for r in held], dtype=np.int64),
            [k for k, _, _ in raw], [v for _, v, _ in raw], [h for _, _, h in raw],
        )  # fmt: skip

    def between(
        self, first: Mapping[int, int], end: Mapping[int, int], but: Collection[tuple[int, int]] = ()
    ) -> Iterator[Record]:
        """Effective records of [first, end), in the order of the source."""
        found = [
            r
            for p, log in self.log.items()
            for at, r in enumerate(log)
            if first.get(p, 0) <= at < end.get(p, 0) and (p, at) not in but and r.effective and not r.bad
        ]
        return iter(sorted(found, key=lambda r: r.seq))

    def keys_of(self, records: Iterable[Record]) -> set[int]:
        """The keys whose rows these records change."""
        return {key for r in records for key in (self.ever if r.empties else (r.id,))}

    # What the source does

    def change(self, rng: Random) -> None:
        """One change of a row, drawn."""
        alive, free = sorted(self.rows), [i for i in range(1, 9) if i not in self.rows]
        kinds = ["insert"] * 3 * bool(free) + ["update"] * 4 * bool(alive) + ["delete"] * 2 * bool(alive)
        kinds += ["move"] * bool(alive and free) + ["bad"] * (rng.random() < 0.3)
        kind = rng.choice(kinds or ["bad"])
        more = {"ts_ms": self._tick(), "file": f"mysql-bin.{self.file:06}"}
        if kind == "insert":
            id_ = rng.choice(free)
            value = self._value(rng)
            self._put(id_, value, self._event("c", id_, None, full(id_, value)), more)
        elif kind == "update":
            id_ = rng.choice(alive)
            value = self._value(rng, id_)
            stated = self._left_out(rng, full(id_, value))
            self._put(id_, value, self._event("u", id_, self._full(id_), stated), more)
        elif kind == "delete":
            id_ = rng.choice(alive)
            self._drop(id_, self._event("d", id_, self._full(id_), None), more)
            if rng.random() < 0.5:
                self._send(id_, Event(key(id_), None))
        elif kind == "move":
            old, new = rng.choice(alive), rng.choice(free)
            value = self.rows[old] if rng.random() < 0.5 else self._value(rng)
            gone, tomb, made = key_change(
                self._event("d", old, self._full(old), None),
                self._event("c", new, None, self._left_out(rng, full(new, value), old)),
            )
            self._drop(old, gone, more)
            self._send(old, tomb)
            self._put(new, value, made, more)
        else:
            id_ = rng.randint(1, 8)
            self._append(Record(Event(key(id_), {}), self._next(), self.clock, id_, effective=False, bad=True))

    def truncate(self) -> None:
        """The table is emptied; a truncate has no key, and here the topic has one partition."""
        more = {"ts_ms": self._tick(), "file": f"mysql-bin.{self.file:06}"}
        event = self._stamped(Event(None, self._event("t", 0, None, None).value), more)
        self.rows.clear()
        self._append(Record(event, self._next(), self.clock, empties=True))

    def snapshot(self) -> None:
        """The connector reads all rows once more."""
        more = {"ts_ms": self._tick(), "file": f"mysql-bin.{self.file:06}"}
        for id_, value in sorted(self.rows.items()):
            self._put(id_, value, self._event("r", id_, None, full(id_, value)), {**more, "snapshot": "true"})

    def send_again(self, count: int) -> None:
        """The connector sends its last records once more, as it does after a crash."""
        for r in self.sent[-count:]:
            self.again |= self.keys_of([r])
            self.sent_again |= self.keys_of([r])
            self.log[self.home(r.id)].append(
                Record(r.event, self._next(), self.clock, r.id, r.value, r.gone, r.effective, r.bad, r.empties)
            )

    def fail_over(self) -> None:
        """Another server: its positions are lower."""
        self.file, self.pos = max(1, self.file - 1), 100 if not self.pg else max(10, self.pos - 1000)
        self.sent.clear()

    def recreate(self) -> None:
        self.log = {p: [] for p in range(self.partitions)}
        self.low = dict.fromkeys(self.log, 0)
        self.sent.clear()

    def _tick(self) -> int:
        self.pos += 10
        self.clock += 5
        return self.clock

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    def _full(self, id_: int) -> dict[str, Any]:
        return full(id_, self.rows[id_])

    def _event(self, op: str, id_: int, before: Row | None, after: Row | None) -> Event:
        if self.pg:
            return postgres(op, key(id_), None, after, self.pos - 5, self.pos)
        return mysql(op, key(id_), before, after, self.pos)

    def _left_out(self, rng: Random, after: dict[str, Any], id_: int | None = None) -> dict[str, Any]:
        """The row as the event states it: PostgreSQL leaves large values out that did not change."""
        same = after["v"] is not None and after["v"] == self.rows.get(after["id"] if id_ is None else id_)
        return {**after, "v": PLACEHOLDER} if self.pg and same and rng.random() < 0.7 else after

    def _value(self, rng: Random, id_: int = 0) -> str | None:
        if self.pg and id_ in self.rows and rng.random() < 0.4:
            return self.rows[id_]
        self.born += 1
        return None if rng.random() < 0.05 else f"v{self.born}" + "!" * (rng.random() < self.wide)

    def _stamped(self, event: Event, more: Mapping[str, object]) -> Event:
        assert event.value is not None
        more = {"ts_ms": more["ts_ms"]} if self.pg else more
        value = {**event.value, "source": {**event.value["source"], **more}}
        return Event(event.key, value, event.headers)

    def _put(self, id_: int, value: str | None, event: Event, more: Mapping[str, object]) -> None:
        event = self._stamped(event, more)
        assert event.value is not None
        self.rows[id_] = value
        self.ever.add(id_)
        self._append(Record(event, self._next(), self.clock, id_, self.rows[id_]))

    def _drop(self, id_: int, event: Event, more: Mapping[str, object]) -> None:
        del self.rows[id_]
        self._append(Record(self._stamped(event, more), self._next(), self.clock, id_, gone=True))

    def _send(self, id_: int, event: Event) -> None:
        self._append(Record(event, self._next(), self.clock, id_, effective=False))

    def _append(self, record: Record) -> None:
        self.sent.append(record)
        self.log[self.home(record.id)].append(record)


class Wrong(AssertionError):
    """The table, or what a command says of it, is not what the model says."""


@dataclass
class SourceRows:
    """The source as commands read it."""

    shop: Shop
    proves: bool = True

    def position(self) -> int:
        return self.shop.pos + 5 if self.shop.pg else self.shop.file << 40 | (self.shop.pos + 5)

    def settled(self, patience: float) -> int:
        return self.position() if self.proves else 0

    def columns(self) -> dict[str, str]:
        return {"id": "bigint", "v": "varchar(20)", "n": "bigint"}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Any, ...]]]:
        rows = [full(k, v) for k, v in sorted(self.shop.rows.items())]
        yield [tuple(None if r[n] is None else str(r[n]) for n in names) for r in rows]

    def close(self) -> None:
        pass


class Known(Altered):
    """The target table, looked at only when a step has altered it."""

    def detect(self) -> TargetTable:
        return self.table


@dataclass(frozen=True)
class Copies:
    """A backup of ClickHouse at one moment."""

    topic_id: str
    book: Any
    over: dict[int, tuple[int, str | None, bool]]
    loose: set[int]
    narrow: bool
    doubtful: bool
    loads: int
    applied: dict[int, int]
    clean: bool


def differing(want: Rows, got: Rows, but: set[int]) -> dict[int, tuple[Any, Any]]:
    """Key → what is right, what was found."""
    return {
        k: (want.get(k, "none"), got.get(k, "none"))
        for k in sorted({*want, *got} - but)
        if (k in want, want.get(k)) != (k in got, got.get(k))
    }
