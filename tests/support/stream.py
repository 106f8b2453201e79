"""A recorded stream through the product's pipeline into the real engine, without Kafka and Spark."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHousePending,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    detect,
    execute,
    has_nullable_tuple,
)
from ch_sink.decode import Decoder, decoder_for
from ch_sink.discovery.sample import sample_schema
from ch_sink.memory import MemoryLedger
from ch_sink.model.change import Records, UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.pipeline.target import Target
from ch_sink.ports import Fence
from ch_sink.stream.ports import StreamSettings
from ch_sink.table.ddl import init_statements
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.fixtures import as_records, partitions, registry, topic_of, topics
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalPorts, LocalRunner
from tests.support.memory_stream import MemoryGroup, MemoryTopic


def typed_stream(stream: str, table: str) -> str:
    """The stream with schemas that has this table: plain JSON takes its types from there.

    Avro states its own, except for the table whose column names Avro does not allow: they are those of JSON.
    """
    database = stream.split("-")[0]
    if stream.endswith("-avro") and table != "odd":
        return stream
    for name in (f"{database}-json_schema", f"{database}-json_schema-kc", f"{database}-json_schema-wide"):
        if any(topic.rpartition(".")[2] == table for topic in topics(name)):
            return name
    raise LookupError(f"no stream with schemas has {table}")


def schema_of(stream: str, table: str, keep: Mapping[str, tuple[str, str, dict[str, str]]] | None = None) -> RowSchema:
    """What ``init`` finds in a topic. ``keep``: kind, semantic name and parameters that plain JSON does not state."""
    found = _sampled(stream, table)
    told = keep or {}
    fields = tuple(
        Field(f.name, SourceType(told[f.name][0], told[f.name][1], tuple(told[f.name][2].items())))
        if f.name in told
        else f
        for f in found.fields
    )
    return RowSchema(fields, found.key)


@cache
def _sampled(stream: str, table: str) -> RowSchema:
    everything = topics(stream)[topic_of(stream, table)]
    found = sample_schema(
        as_records([replace(r, partition=0, offset=i) for i, r in enumerate(everything)]), registry=registry(stream)
    )
    assert found is not None
    return found


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
    spec.setdefault("types", types_of(client))
    wanted = TableSpec(database=database, table=table, engine=EngineChoice.parse(engine), **spec)  # type: ignore[arg-type]
    execute(client, [s.sql for s in init_statements(schema, wanted)])
    return detect(client, database, table, policy)


def types_of(client: Client) -> TypeChoices:
    """The choices among column types that ``init`` makes for a server of this version."""
    if client.server_version not in _types:
        _types[client.server_version] = TypeChoices(nullable_tuple=has_nullable_tuple(client))
    return _types[client.server_version]


_types: dict[str, TypeChoices] = {}


class Altered:
    """The target table; knows how it was altered. A life after the first looks at the server."""

    def __init__(
        self, client: Client, database: str, table: TargetTable, policy: Policy, rollups: tuple[RollupChoice, ...] = ()
    ) -> None:
        self.inner = ClickHouseTableAdmin(client, database, table.name, policy, rollups=rollups)
        self.table, self.looked = table, bool(rollups)
        self.evolved: list[tuple[str, ...]] = []

    def detect(self) -> TargetTable:
        self.table = self.inner.detect() if self.looked else self.table
        self.looked = True
        return self.table

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        self.table = self.inner.carry_out(table, columns, key)
        self.evolved += [tuple(c.name for c in columns)] if columns else []
        return self.table

    def truncate(
        self, table: TargetTable, version: int, version_column: str | None, supersede: Callable[[], Sequence[Fence]]
    ) -> None:
        self.inner.truncate(table, version, version_column, supersede)

    def highest_version(self, table: TargetTable) -> int:
        return self.inner.highest_version(table)

    def has_rows(self, table: TargetTable, *, of_any: bool = False) -> bool:
        return self.inner.has_rows(table, of_any=of_any)

    def fill_rollups(
        self, table: TargetTable, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool, last: str = ""
    ) -> None:
        self.inner.fill_rollups(table, supersede, doubtful=doubtful, last=last)

    def keep_rollups(self, table: TargetTable, run: str) -> None:
        self.inner.keep_rollups(table, run)


def engine_ports(
    client: Client, database: str, prefix: str, stream: str, topic: MemoryTopic, policy: Policy, **others: Any
) -> LocalPorts:
    """Ports to ClickHouse of a stream whose topic is in memory.

    ``database``, ``prefix``: where the sink's own tables are, and how their names begin.
    """
    ports: dict[str, Any] = {
        "topics": topic,
        "group": MemoryGroup(),
        "pending": ClickHousePending(client, database, f"{prefix}pending", stream),
        "dead_letters": ClickHouseDeadLetters(client, database, f"{prefix}dead_letters", stream, topic.topic_id),
        "writer": lambda table: ClickHouseWriter(client, table),
        "lookup": lambda table: AnyKeyLookup(client, table),
        "handover": lambda table: ClickHouseHandover(client, database, f"{prefix}handover", stream, table),
        "decoder": lambda table, want: Decoder(table, policy, want_before=want),
        "records": topic.read,
        "history": topic.history,
    }
    return LocalPorts(**ports | others)


class Feed:
    """One topic of a recorded stream into one table, through the coordinator."""

    def __init__(
        self,
        client: Client,
        database: str,
        target: TargetTable,
        stream: str,
        topic: str,
        policy: Policy,
        records: Mapping[int, Records] | None = None,
        *,
        again: "Feed | None" = None,
        rollups: tuple[RollupChoice, ...] = (),
    ) -> None:
        """
        Args:
            records: by partition, where they are not those of a recorded stream.
            again: the feed whose ledger this one continues: everything is read again, from the start.
        """
        self.policy, self.topic, self.name = policy, topic, f"{stream}/{database}.{target.name}"
        self.records = dict(records) if records is not None else partitions(stream, topic)
        log, known = MemoryTopic(topic, self.records), registry(stream)
        if again is not None:
            again.runner.stop()
        self.book = book = again.book if again is not None else MemoryLedger(self.name)
        self.ends, self.at = log.ends, dict.fromkeys(self.records, 0)
        self._letters = ClickHouseDeadLetters(client, database, "ch_sink_dead_letters", self.name, log.topic_id)
        self._log = log
        self.admin = Altered(client, database, target, policy, rollups)
        ports = engine_ports(
            client, database, "ch_sink_", self.name, log, policy,
            open_ledger=lambda: MemoryLedger(self.name, beside=book),
            admin=self.admin,
            dead_letters=self._letters,
            decoder=lambda table, want: decoder_for(table, policy, want_before=want, registry=known),
        )  # fmt: skip
        self.runner = LocalRunner(StreamSettings(self.name, topic, policy), ports)

    @property
    def target(self) -> Target:
        return Target.of(self.admin.table, self.policy)

    @property
    def letters_of(self) -> ClickHouseDeadLetters:
        """The dead letters of the topic as it is now."""
        return replace(self._letters, topic_id=self._log.topic_id)

    @property
    def evolved(self) -> list[tuple[str, ...]]:
        """Names of the columns that were added or changed, each time the table was altered."""
        return self.admin.evolved

    @property
    def letters(self) -> int:
        """Dead letters of the stream."""
        return sum(self.letters_of.count().values())

    @property
    def counts(self) -> Counter[str]:
        """Of all ranges that came to their end."""
        return sum((done.counts.kinds for done in self.runner.results), Counter())

    def chunk(self, partition: int, end: int, *kills: Kill) -> None:
        """Apply a partition up to an offset, as a batch of one chunk; each kill ends a life in it."""
        self._batch([(partition, end)], kills)

    def run(self, rng: random.Random | None = None, longest: int = 10**9, steps: int = 8) -> None:
        """Everything that is left, partitions interleaved at random, in chunks of up to ``longest`` records.

        ``steps``: how many chunks a batch has at most.
        """
        rng = rng or random.Random(0)
        at = dict(self.at)
        chunks: list[tuple[int, int]] = []
        while left := [p for p in self.records if at[p] < self.ends[p]]:
            p = rng.choice(left)
            at[p] = min(self.ends[p], at[p] + rng.randint(1, longest))
            chunks.append((p, at[p]))
        while chunks:
            count = rng.randint(1, steps)
            self._batch(chunks[:count], ())
            chunks = chunks[count:]
        self.runner.run_release()

    def _batch(self, chunks: Sequence[tuple[int, int]], kills: Sequence[Kill]) -> None:
        ends = dict(chunks)
        cuts = {p: [end for place, end in chunks if place == p] for p in ends}
        ranges = {p: (self.at[p], end) for p, end in ends.items()}
        self.runner.run([LocalBatch(ranges, cuts, [p for p, _ in chunks], kills)])
        self.at |= ends
