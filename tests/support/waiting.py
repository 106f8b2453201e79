"""A stream of two partitions whose changes wait for a hand-over while the table's columns change."""

from typing import Any

import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.memory import MemoryHandover, MemoryPending
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Attempt, PartitionSink, Stores, open_sink
from ch_sink.pipeline.plans import Ports, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.ports import StoredRows
from ch_sink.table.model import TargetTable
from ch_sink.types import arrow_type
from ch_sink.types.column import Column
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres, records_of
from tests.support.harness import ENGINES
from tests.support.memory_stream import MemoryDeadLetters
from tests.support.memory_table import MemoryTable

FIRST = ("id", "big")


BOTH = ("id", "big", "extra")


TYPES = {"id": "Int64", "big": "Nullable(String)", "extra": "Nullable(Int64)"}


def row(key: int, big: str, extra: int | None = None) -> dict[str, Any]:
    return {"id": key, "big": big} | ({} if extra is None else {"extra": extra})


def change(extra: int | None = None) -> list[Event]:
    """Row 1 becomes row 2; its large value is left out."""
    new = postgres("c", {"id": 2}, None, row(2, PLACEHOLDER, extra), 200, 190)
    return key_change(postgres("d", {"id": 1}, None, None, 200, 190), new)


def moved(old: int, new: int, at: int) -> list[Event]:
    """One row's key changes, and its large value is left out."""
    create = postgres("c", {"id": new}, None, row(new, PLACEHOLDER), at, at - 10)
    return key_change(postgres("d", {"id": old}, None, None, at, at - 10), create)


class Rows(MemoryTable):
    """Rows that have no value of a column are null there, as a server's are of a column that came later."""

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        found = super().fetch(keys, below).rows
        missing = [name for name in BOTH if name not in found.column_names]
        for name in missing:
            found = found.append_column(name, pa.nulls(found.num_rows, arrow_type(TYPES[name])))
        return StoredRows(found)


class Stream:
    """Two partitions of a topic: the create halves come on 0, the rows and delete halves on 1."""

    def __init__(self, columns: tuple[str, ...], evolve: str = "add_columns") -> None:
        self.rows = Rows(self.detected(BOTH), ("id",))
        self.pending, self.letters = MemoryPending(), MemoryDeadLetters()
        self.handover = MemoryHandover({name: arrow_type(TYPES[name]) for name in columns})
        self.states = {0: State(), 1: State()}
        self.now = 0.0
        self.ends = {0: 0, 1: 0}
        self.alter(columns, evolve)

    @staticmethod
    def detected(names: tuple[str, ...]) -> TargetTable:
        columns = [Column(name, TYPES[name]) for name in names]
        columns += [Column("_version", "UInt128"), Column("_is_deleted", "UInt8")]
        return TargetTable("d", "t", ENGINES["replacing"], tuple(columns), ("id",), place_columns=frozenset(("id",)))

    def alter(self, names: tuple[str, ...], evolve: str = "add_columns") -> None:
        """The table has these columns from now on; the stream begins again."""
        table, policy = self.detected(names), policy_of(evolve=evolve)  # type: ignore[arg-type]
        self.handover.types = {name: arrow_type(TYPES[name]) for name in names}
        self.sinks = {
            p: open_sink(
                StreamName("s", "t", "id", p),
                Target.of(table, policy),
                lambda before: Decoder(table, policy, want_before=before),
                Ports(self.rows, self.handover),
                Stores(self.rows, self.letters, self.pending),
                Attempt(deadline=600.0, clock=lambda: self.now),
            )
            for p in (0, 1)
        }

    def feed(self, partition: int, *events: Event) -> None:
        first = self.ends[partition]
        end = self.ends[partition] = first + len(events)
        done = self.sinks[partition].apply(Chunk(first, end, records_of(events, first)), self.states[partition])
        assert done.end == end
        self.states[partition] = done.state

    def retry(self) -> PartitionSink:
        self.sinks[0].retry_pending(self.states[0], below=1 << 62)
        return self.sinks[0]

    def current(self) -> list[dict[str, Any]]:
        newest = {r["id"]: r for r in sorted(self.rows.rows, key=lambda r: r["_version"][::-1])}
        live = [{n: r.get(n) for n in BOTH} for r in newest.values() if not r["_is_deleted"]]
        return [{**r, "big": r["big"].decode()} for r in live]


def waits_for_its_value(stream: Stream, *more: Event) -> None:
    """Row 1 is stored; the create half of its change waits, and what comes behind it for the new key."""
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90))
    stream.feed(0, change(extra=7)[2], *more)
    assert stream.sinks[0].waiting == 1 + len(more)
