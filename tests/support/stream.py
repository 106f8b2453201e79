"""A recorded stream through the product's pipeline into the real engine, without Kafka and Spark."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHousePending,
    ClickHouseWriter,
    Client,
    Evolution,
    detect,
    execute,
)
from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Applied, PartitionSink, StreamName
from ch_sink.pipeline.plan import Barrier, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import ChunkCut
from ch_sink.table.ddl import init_statements
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.table.truncate import truncate_statement
from ch_sink.testing import MemoryLedger
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.fixtures import as_records, partitions, registry, topic_of, topics

__all__ = ["Feed", "Killed", "make_table", "schema_of", "typed_stream"]


class Killed(Exception):
    """The process died here."""


def typed_stream(stream: str, table: str) -> str:
    """The stream with schemas that has this table: plain JSON takes its types from there.

    Avro tells its own, but for the table whose column names Avro does not allow: they are those of JSON.
    """
    database = stream.split("-")[0]
    if stream.endswith("-avro") and table != "odd":
        return stream
    for name in (f"{database}-json_schema", f"{database}-json_schema-kc", f"{database}-json_schema-wide"):
        if any(topic.rpartition(".")[2] == table for topic in topics(name)):
            return name
    raise LookupError(f"no stream with schemas has {table}")


def schema_of(stream: str, table: str, keep: Mapping[str, tuple[str, str, dict[str, str]]] | None = None) -> RowSchema:
    """What ``init`` finds in a topic. ``keep``: kind, semantic name and parameters that plain JSON does not tell."""
    everything = topics(stream)[topic_of(stream, table)]
    found = sample_schema(
        as_records([replace(r, partition=0, offset=i) for i, r in enumerate(everything)]), registry=registry(stream)
    )
    assert found is not None
    told = keep or {}
    fields = tuple(
        Field(f.name, SourceType(told[f.name][0], told[f.name][1], tuple(told[f.name][2].items())))
        if f.name in told
        else f
        for f in found.fields
    )
    return RowSchema(fields, found.key)


def make_table(
    client: Client,
    database: str,
    table: str,
    schema: RowSchema,
    *,
    engine: str = "replacing",
    policy: Policy,
    **spec: object,
) -> TargetTable:
    """Carry ``init`` out, and detect what it made."""
    wanted = TableSpec(database=database, table=table, engine=EngineChoice.parse(engine), **spec)  # type: ignore[arg-type]
    execute(client, [s.sql for s in init_statements(schema, wanted)])
    return detect(client, database, table, policy)


class Feed:
    """One topic of a recorded stream into one table."""

    def __init__(
        self,
        client: Client,
        database: str,
        target: TargetTable,
        stream: str,
        topic: str,
        policy: Policy,
        records: Mapping[int, Records] | None = None,
    ) -> None:
        """``records``: by partition, where they are not those of a recorded stream."""
        self.client, self.database, self.policy = client, database, policy
        self.target = Target.of(target, policy)
        self.topic, self.name = topic, f"{stream}/{database}.{target.name}"
        self.records = dict(records) if records is not None else partitions(stream, topic)
        self.registry = registry(stream)
        self.ends = {p: int(r.offsets[-1]) + 1 for p, r in self.records.items()}
        self.at = dict.fromkeys(self.records, 0)
        self.states = dict.fromkeys(self.records, State())
        self.counts: Counter[str] = Counter()
        self.sinks: dict[int, PartitionSink] = {}
        self.attempt = 0
        self.kill_after: int | None = None
        self.letters = 0
        self.ledger = MemoryLedger(self.name)
        self.evolved: list[tuple[str, ...]] = []
        """Names of the columns that were added or changed, each time the table was altered."""

    def write(self, insert: object, token: str) -> int:
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed
        return ClickHouseWriter(self.client, self.target.table).write(insert, token)  # type: ignore[arg-type]

    def before(self, partition: int) -> "_Past":
        return _Past(self.records[partition])

    def sink(self, partition: int) -> PartitionSink:
        if partition not in self.sinks:
            client, table = self.client, self.target.table
            self.sinks[partition] = PartitionSink(
                StreamName(self.name, self.topic, "id", partition, self.attempt),
                self.target,
                lambda want: Decoder(table, self.policy, want_before=want, registry=self.registry),
                Ports(
                    AnyKeyLookup(client, table),
                    ClickHouseHandover(client, self.database, "ch_sink_handover", self.name, table),
                    self.before(partition),
                ),
                self,
                ClickHouseDeadLetters(client, self.database, "ch_sink_dead_letters", self.name, "id"),
                ClickHousePending(client, self.database, "ch_sink_pending", self.name),
                deadline=1e9,
                cuts=self.ledger.cuts("id").get(partition, ()),
                note_cut=lambda offset: self.ledger.put_cut(ChunkCut("id", partition, offset)),
            )
        return self.sinks[partition]

    def chunk(self, partition: int, end: int) -> None:
        """Apply a partition up to an offset."""
        while self.at[partition] < end:
            start, whole = self.at[partition], self.records[partition]
            keep = (whole.offsets >= start) & (whole.offsets < end)
            part = whole.take([i for i, k in enumerate(keep.tolist()) if k])
            done = self.sink(partition).apply(Chunk(start, end, part), self.states[partition])
            self._done(partition, done)

    def _done(self, partition: int, done: Applied) -> None:
        self.counts.update(done.counts)
        self.letters += done.dead_letters
        barrier = done.barrier
        self.states[partition] = done.state
        if barrier is not None and barrier.kind == "truncate":
            execute(self.client, [truncate_statement(self.target.table, barrier.version, self.target.system.version)])
            for p, state in self.states.items():
                self.states[p] = replace(state, floor=max(state.floor, barrier.floor))
        self.at[partition] = done.end
        if barrier is not None and barrier.kind == "new_columns" and barrier.columns:
            self.evolve(barrier)

    def evolve(self, barrier: Barrier) -> None:
        """What the driver does: the table gets its columns, and every sink begins anew with them."""
        evolution = Evolution(self.client, self.database, self.target.table.name, self.policy)
        self.target = Target.of(evolution.carry_out(self.target.table, barrier.columns, barrier.key), self.policy)
        self.evolved.append(tuple(c.name for c in barrier.columns))
        self.sinks.clear()

    def run(self, rng: random.Random | None = None, longest: int = 10**9) -> None:
        """Everything that is left, partitions interleaved at random, in chunks of up to ``longest`` records."""
        rng = rng or random.Random(0)
        while left := [p for p in self.records if self.at[p] < self.ends[p]]:
            p = rng.choice(left)
            self.chunk(p, min(self.ends[p], self.at[p] + rng.randint(1, longest)))
        self.drain()

    def drain(self) -> None:
        before = -1
        while (left := sum(self.sink(p).waiting for p in self.records)) and left != before:
            before = left
            for p, state in self.states.items():
                self.sink(p).retry_pending(state)

    def restart(self) -> None:
        """A new process: nothing is remembered but offsets and states."""
        self.sinks.clear()
        self.attempt += 1
        self.kill_after = None


class _Past:
    def __init__(self, records: Records) -> None:
        self.records = records

    def before(self, offset: int, limit: int) -> Records:
        places = [i for i, o in enumerate(self.records.offsets.tolist()) if o < offset]
        return self.records.take(places[-limit:])
