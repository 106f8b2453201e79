"""Runs the tasks of a stream on rows of a DataFrame that are changes already, and says which tables take them.

Offsets are counted as rows arrive, and decide nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ch_sink.clickhouse import AnyKeyLookup
from ch_sink.config import Config
from ch_sink.decode.stated_rows import BUCKET, NUMBER, OP, RowDecoder, Rows, added_type
from ch_sink.discovery.wiring import client_of
from ch_sink.errors import ConfigError
from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.order.sequence import Rules, sequence
from ch_sink.order.version import Words, to_ints
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowLookup
from ch_sink.sources import STATED
from ch_sink.spark.frame_stream import Span
from ch_sink.spark.frame_tasks import Batches, FrameTasks, changed_meanwhile
from ch_sink.stream.run_task import OpenPorts, TaskPorts
from ch_sink.stream.tasks import RangeTask, Task
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import untimed
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import kept_apart
from ch_sink.types.sql import quote
from ch_sink.wiring.tasks import task_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 8
"""Partitions over which rows are spread by their keys. Fixed: a key's rows always have the same."""
_ROWS = 50_000
"""Rows of a chunk."""
_EPOCHS = {"UInt128": 1 << 112, "Int128": 1 << 112, "UInt256": 1 << 112, "Int256": 1 << 112}
"""Versions from which on an epoch is in them, by the type of their column."""
_ENGINE = "Use ENGINE = ReplacingMergeTree(_version, _is_deleted) with _version UInt128, _is_deleted UInt8."


def bucket(keys: Sequence[str]) -> str:
    """SQL of a row's bucket."""
    return f"int(pmod(xxhash64({', '.join(map(quoted, keys))}), {BUCKETS}))"


def quoted(name: str) -> str:
    """A column's name in Spark's SQL, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class ChangeRows:
    """Opens tasks on rows that have the columns `BUCKET`, `NUMBER` and `OP`: see `Opening`."""

    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included."""
    spans: Mapping[int, Span]
    least: Mapping[int, int]
    """Bucket → the lowest number of the batch."""
    keys: tuple[str, ...]
    ignored_nulls: frozenset[str]
    kinds: Mapping[str, str]
    """Column → its type in Spark."""

    def of(self, frame: "DataFrame") -> FrameTasks:
        """Runs tasks on the rows of this DataFrame."""
        rows = {bucket: span.rows for bucket, span in self.spans.items()}
        return FrameTasks(frame, BUCKET, (NUMBER, *map(quoted, self.keys), OP), rows, self.config, self)

    def repeats(self, task: RangeTask) -> bool:
        """Whether some of the rows may have come before, in whatever batch."""
        known = task.state.sources.get(STATED.name)
        return task.attempt > 0 or (known is not None and self.least[task.partition] <= known.commit)

    @contextmanager
    def __call__(self, task: RangeTask, batches: Iterable[pa.RecordBatch]) -> Iterator[OpenPorts]:
        config, span = Config.from_task_json(self.config), self.spans[task.partition]
        source = _Numbered(task, batches, span.first, span.rows)

        def decoder(table: TargetTable) -> RowDecoder:
            return RowDecoder(table, self.keys, self.ignored_nulls, self.kinds, config.policy().values)

        def open_ports(wanted: Task) -> TaskPorts:
            ports = task_ports(config, wanted, lambda table, _before: decoder(table))
            left = newer(config, task, decoder(task.table)) if self.repeats(task) else None
            return replace(ports, chunks=lambda first: source.chunks(first, self.keys, left))

        yield open_ports


@dataclass(slots=True)
class _Numbered:
    """The rows of one bucket, which are counted from an offset on."""

    task: RangeTask
    batches: Iterable[pa.RecordBatch]
    first: int
    rows: int

    def chunks(self, first: int, keys: tuple[str, ...], left: "Newer | None") -> Iterator[Chunk]:
        """Chunks of the task from this offset on. Raises StreamFailed if the DataFrame has other rows than before."""
        for chunk in numbered(self.task, self._from(first), first, keys):
            yield left.of(chunk) if left is not None else chunk

    def _from(self, first: int) -> Batches:
        at = self.first
        for batch in self.batches:
            start, at = at, at + batch.num_rows
            yield batch.slice(max(0, first - start), max(0, min(at, self.task.end) - max(first, start)))
        if at - self.first != self.rows:
            raise changed_meanwhile(self.task.partition)


def numbered(task: RangeTask, batches: Batches, first: int, keys: tuple[str, ...]) -> Iterator[Chunk]:
    """The rows as chunks, whose offsets are counted from ``first`` on."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        while sum(b.num_rows for b in held) >= _ROWS:
            whole = pa.Table.from_batches(held)
            yield _chunk(task, whole.slice(0, _ROWS), first, keys)
            first += _ROWS
            held = whole.slice(_ROWS).to_batches()
    if held:
        yield _chunk(task, pa.Table.from_batches(held), first, keys)


def _chunk(task: RangeTask, rows: pa.Table, first: int, keys: tuple[str, ...]) -> Chunk:
    end = first + rows.num_rows
    texts: Any = Rows(rows.select(list(keys)))
    offsets, times = np.arange(first, end), np.full(rows.num_rows, -1, dtype=np.int64)
    return Chunk(first, end, Records(task.topic, task.partition, offsets, times, texts, Rows(rows)))


def expect_served(table: TargetTable, keys: Sequence[str], kinds: Mapping[str, str]) -> None:
    """Raises ConfigError for a table in which rows of late and repeated batches cannot be distinguished, or two keys.

    ``kinds``: type of each column in Spark.
    """
    place = table.qualified
    if table.engine.version_column is None or table.engine.is_deleted_column is None:
        raise ConfigError(
            f"{place} is a {table.engine.name}: changes need versions and delete marks",
            hint=_ENGINE,
        )
    version = table.column(table.engine.version_column)
    if version is None or version.type.startswith("DateTime"):
        raise ConfigError(f"the versions of {place} are times, which several changes may share", hint=_ENGINE)
    if moving := sorted(table.moves_by(keys)):
        raise ConfigError(
            f"{place} keeps a row at a place that depends on {moving[0]!r}, which is not one of the keys",
            hint="Sort and partition it by keys only: a row that comes late would not find the one it belongs to.",
        )
    for key in keys:
        column = table.column(key)
        if column is None:
            raise ConfigError(
                f"{place} has no column {key!r}, which is one of the keys", hint="Add it, or name others."
            )
        natural, target = added_type(kinds[key]), parse_type(column.type).bare
        if natural is None or not kept_apart(parse_type(natural).bare, target, text=kinds[key] == "string"):
            better = f", or create the table with {quote(key)} {parse_type(natural).bare}" if natural else ""
            raise ConfigError(
                f"column {key!r}: keys of type {kinds[key]} that differ can be one value of {column.type}",
                hint=f"Cast it in the DataFrame to what identifies a row{better}.",
            )


def expect_stated_versions(table: TargetTable, highest: int | None) -> None:
    """Raises ConfigError if the highest version is of a later epoch: no number of a change would beat its row."""
    version = table.column(table.engine.version_column or "")
    if highest and version is not None and highest >= _EPOCHS.get(version.type, highest + 1):
        raise ConfigError(
            f"{table.qualified} has rows with versions that are not change numbers",
            hint="Another stream has filled it: write to a separate table, or empty this one.",
        )


@dataclass(frozen=True)
class Newer:
    """Leaves out rows that the table has, or has a newer one of: they may have come before, and change nothing."""

    decoder: RowDecoder
    lookup: RowLookup
    rules: Rules
    state: State

    def of(self, chunk: Chunk) -> Chunk:
        """The chunk without them. Raises ClickHouseError."""
        records = chunk.records
        batch = self.decoder.decode(records)
        if batch.key is None or not len(batch):
            return chunk
        mine = to_ints(sequence(batch, records, self.state, self.rules).version)
        found = self.lookup.fetch(batch.key).rows
        version = self.decoder.table.engine.version_column or ""
        stored = dict(zip(_keys(found, self.decoder.keys), to_ints(_words(self.rules, found, version)), strict=True))
        keys = _keys(batch.key, self.decoder.keys)
        keep = np.ones(len(records), dtype=np.bool_)
        for place, key, number in zip(batch.source_index.tolist(), keys, mine, strict=True):
            keep[place] = number > stored.get(key, -1)
        if keep.all():
            return chunk
        shown: list[Any] = []
        for rows in (records.keys, records.values):
            assert isinstance(rows, Rows)
            shown.append(Rows(rows.table.filter(pa.array(keep))))
        left = Records(records.topic, records.partition, records.offsets[keep], records.timestamps[keep], *shown)
        return Chunk(chunk.first, chunk.end, left)


def newer(config: Config, task: RangeTask, decoder: RowDecoder) -> Newer:
    """For a task on real ports. Raises ClickHouseError."""
    policy = config.policy()
    rules = Rules(Target.of(task.table, policy).layout, policy.versions, "stated")
    return Newer(decoder, AnyKeyLookup(client_of(config), task.table), rules, task.state)


def _keys(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(untimed(rows.column(name)).to_pylist() for name in names), strict=True))


def _words(rules: Rules, rows: pa.Table, version: str) -> Words:
    return rules.layout.from_arrow(rows.column(version))
