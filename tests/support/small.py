"""Small chunks of hand-written events: decoded, ordered and resolved against a table in memory, without an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ch_sink.decode import Decoder
from ch_sink.memory import MemoryHandover
from ch_sink.merge.append import Changes, merge_append
from ch_sink.merge.collapsing import merge_collapsing
from ch_sink.merge.dependent import LeftOpen
from ch_sink.merge.replacing import merge_replacing
from ch_sink.merge.resolve import resolve
from ch_sink.merge.resolved import Merged, Resolved, Scope
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import Earlier, Rules, Sequenced, State, sequence
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.column import Column
from tests.support.hand import Event, records_of
from tests.support.harness import ENGINES
from tests.support.memory_table import MemoryTable


@dataclass
class Step:
    """One chunk as far as its resolution."""

    batch: ChangeBatch
    records: Records
    order: Sequenced
    scope: Scope
    out: Resolved
    small: "Small"

    def merged(self) -> Merged:
        target = self.small.target
        if target.collapsing:
            return merge_collapsing(self.batch, self.out, self.order, self.scope, target.system)
        if target.appends:
            changes = Changes.of(self.batch, self.records, self.order, target.table, target.system.layout)
            return merge_append(changes, self.out)
        return merge_replacing(self.batch, self.out, self.order, self.scope, target.system, self.small.policy.changes)

    def values(self, column: str) -> list[Any]:
        """What each event's row holds in the end, by Kafka order; None if there is no row."""
        refs = self.out.value_refs(column, np.arange(len(self.batch)))
        return [_text(v) for v in self.out.pool.take(column, refs).to_pylist()]


class Small:
    """A table (id, p, v) and what is stored in it. ``order``: its sorting key."""

    def __init__(
        self,
        engine: str = "replacing",
        *,
        order: tuple[str, ...] = ("id",),
        partition: str = "",
        policy: Policy | None = None,
    ) -> None:
        made = ENGINES[engine]
        self.policy = policy or policy_of()
        columns = [
            Column("id", "Int64"),
            Column("p", "Int32"),
            Column("v", "Nullable(String)"),
            Column("_version", "UInt128"),
        ]
        columns += [Column(made.sign_column, "Int8")] if made.sign_column else []
        columns += [Column(made.is_deleted_column, "UInt8")] if made.is_deleted_column else []
        columns += [Column("_op", "String"), Column("_sign", "Int8")] if engine.startswith("append") else []
        columns += [Column("_source_time", "DateTime64(3)")] if engine.startswith("append") else []
        place = frozenset({*order, *([partition] if partition else [])})
        table = TargetTable("d", "t", made, tuple(columns), order, partition, place)
        self.target = Target.of(table, self.policy)
        self.table = MemoryTable(table, ("id",))
        self.handover = MemoryHandover({c.name: arrow_type(c.type) for c in table.source_columns})
        self.state = State()
        self.states: dict[int, State] = {}
        """State at the start of each chunk that was stored."""
        self.next = 0
        self.queries = 0

    def fetch(self, keys: Any, below: Any = None) -> Any:
        self.queries += 1
        return self.table.fetch(keys, below)

    def decoder(self) -> Decoder:
        return Decoder(self.target.table, self.policy, want_before=self.target.wants_before(("id",)))

    def store(self, *events: Event) -> "Small":
        """Apply the events as chunks before."""
        records = records_of(events, self.next)
        self.states[self.next] = self.state
        made = plan(records, self.target, self.decoder(), self.state, Ports(self, self.handover))
        if made.handover is not None:
            self.handover.put(made.handover.ids, made.handover.rows, made.handover.known, f"h{self.next}")
        for insert in made.inserts:
            self.table.write(insert, f"{self.next} {insert.label}")
        self.state, self.next = made.state, self.next + len(events)
        return self

    def current(self) -> dict[int, Any]:
        """``v`` of the live rows of a replacing table, by id."""
        newest = {r["id"]: r for r in sorted(self.table.rows, key=lambda r: r["_version"][::-1])}
        return {id_: _text(r["v"]) for id_, r in newest.items() if not r["_is_deleted"]}

    def resolve(
        self, *events: Event, waiting: Mapping[bytes, int] | None = None, at: int | None = None, lookup: bool = True
    ) -> Step:
        """Resolve the events as the next chunk, or once more as the one that was stored at offset ``at``."""
        state = self.state if at is None else self.states[at]
        records = records_of(events, self.next if at is None else at)
        decoder = self.decoder()
        batch = decoder.decode(records)
        source = source_for(batch.connector)
        strategy = self.target.strategy(source)
        order = sequence(
            batch,
            records,
            state,
            Rules(self.target.layout, self.policy.versions, strategy),
            Earlier(decode=decoder.decode),
        )
        scope = self.target.scope(batch, source)
        out = resolve(
            batch,
            records,
            order,
            scope,
            self.policy.changes,
            lookup=self if lookup else None,
            handover=self.handover,
            left=LeftOpen(waiting or {}),
        )
        return Step(batch, records, order, scope, out, self)


def rows(merged: Merged, step: str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of the steps of this name, as Python values."""
    tables = [table for name, table in merged.steps if name == step]
    return [tuple(_text(v) for v in found.values()) for t in tables for found in t.select(list(columns)).to_pylist()]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
