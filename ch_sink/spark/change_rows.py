"""Rows that are changes already as the events of tasks: no bytes to decode, columns stay columns.

A row states what it does and a number that orders it. It becomes an event of the key's row: an insert and the image
after an update store it, a delete and the image before an update delete it. Of one key and number storing wins
(`ch_sink.sources.stated`), so images of an update need not be found together, and one that changes the key deletes the
old row and stores the new one. Offsets are counted as rows arrive, and decide nothing.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.clickhouse import AnyKeyLookup
from ch_sink.config import Config
from ch_sink.discovery.wiring import client_of
from ch_sink.errors import ConfigError, StreamFailed
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records, UnknownColumn
from ch_sink.model.policy import TopicProfile
from ch_sink.order import State
from ch_sink.order.sequence import Rules, sequence
from ch_sink.order.version import Words, to_ints
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.target import Target
from ch_sink.ports import History, RowLookup
from ch_sink.sources import STATED
from ch_sink.spark.frame_stream import Span
from ch_sink.spark.kafka_rows import Batches, changed_meanwhile, runs
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.chtype import parse_type
from ch_sink.wiring.tasks import task_ports
from ch_sink.wiring.worker import run_configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "BUCKET",
    "BUCKETS",
    "NUMBER",
    "OP",
    "ChangeRows",
    "RowDecoder",
    "Rows",
    "bucket",
    "expect_served",
    "numbered",
]

BUCKET, NUMBER, OP = "__ch_sink_bucket", "__ch_sink_number", "__ch_sink_op"
BUCKETS = 8
"""Partitions over which rows are spread by their keys. Fixed: a key's rows always have the same."""
_ROWS = 50_000
"""Rows of a chunk."""
_RESULT = "partition long, result binary"
_EPOCHS = {"UInt128": 1 << 112, "Int128": 1 << 112, "UInt256": 1 << 112, "Int256": 1 << 112}
"""Versions from which on an epoch is in them, by the type of their column."""
_ENGINE = "Use ENGINE = ReplacingMergeTree(_version, _is_deleted) with _version UInt128, _is_deleted UInt8."

_MADE = {
    "tinyint": "Int8",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "float": "Float32",
    "double": "Float64",
    "boolean": "Bool",
    "string": "String",
    "binary": "String",
    "date": "Date32",
    "timestamp": "DateTime64(6, 'UTC')",
    "timestamp_ntz": "DateTime64(6)",
}
"""The column types that new columns of the DataFrame get, by their types in Spark."""


def bucket(keys: Sequence[str]) -> str:
    """SQL of a row's bucket."""
    return f"int(pmod(xxhash64({', '.join(f'`{key}`' for key in keys)}), {BUCKETS}))"


def expect_served(table: TargetTable, keys: Sequence[str]) -> None:
    """Raises ConfigError for a table in which rows of late and repeated batches cannot be told apart."""
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
        if table.column(key) is None:
            raise ConfigError(
                f"{place} has no column {key!r}, which is one of the keys", hint="Add it, or name other ones."
            )


def expect_stated_versions(table: TargetTable, highest: int | None) -> None:
    """Raises ConfigError if the highest version is of a later epoch: no number of a change would beat its row."""
    version = table.column(table.engine.version_column or "")
    if highest and version is not None and highest >= _EPOCHS.get(version.type, highest + 1):
        raise ConfigError(
            f"{table.qualified} has rows with versions that are not change numbers",
            hint="Another stream has filled it: write to a separate table, or empty this one.",
        )


class Rows(Sequence[bytes | None]):
    """Rows as the values of records: the text of one is made when somebody shows it."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            first, end, _ = place.indices(len(self))
            return Rows(self.table.slice(first, max(0, end - first)))
        row = {
            name: column[place].as_py()
            for name, column in zip(self.table.column_names, self.table.columns, strict=True)
        }
        return msgspec.json.encode(row, enc_hook=str)


@dataclass(frozen=True)
class RowDecoder:
    """A BatchDecoder for one table."""

    table: TargetTable
    keys: tuple[str, ...]
    ignored_nulls: frozenset[str] = frozenset()
    """Columns of which a null in an update means that the value is as before."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Type of each column in Spark."""

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """Nothing is learned: the keys are stated."""
        del records, profile, history
        return TopicProfile(connector=STATED.name, key_columns=self.keys, key_source="configuration")

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """See BatchDecoder."""
        del profile
        return [tuple(msgspec.json.decode(key).values()) for key in keys]

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """See BatchDecoder."""
        del profile, waited
        assert isinstance(records.values, Rows)
        rows = records.values.table
        ops = rows.column(OP).to_numpy().astype(np.uint8)
        good, bad = np.ones(len(rows), dtype=np.bool_), []
        stores = ops != Op.DELETE
        columns: dict[str, pa.Array] = {}
        for column in self.table.source_columns:
            kind = arrow_type(column.type)
            if column.name not in rows.column_names:
                columns[column.name] = pa.nulls(len(rows), kind)
                continue
            made, faults = _cast(column.name, rows.column(column.name), kind)
            if not parse_type(column.type).nullable and column.name not in self.ignored_nulls:
                needed = made.is_null().to_numpy(zero_copy_only=False) & (stores | (column.name in self.keys))
                for place in np.flatnonzero(needed).tolist():
                    faults.setdefault(place, "null, and the table's column cannot hold null")
            columns[column.name] = made
            for place, reason in faults.items():
                if good[place]:
                    bad.append(BadRecord(place, f"column {column.name}: {reason}", "range", column.name))
                good[place] = False
        kept = np.flatnonzero(good)
        taken = {name: array.take(pa.array(kept)) for name, array in columns.items()}
        ops, stores = ops[kept], stores[kept]
        numbers = rows.column(NUMBER).to_numpy()[kept].astype(np.uint64)
        n, none = len(kept), pa.array(~stores)
        after = pa.table({name: pc.if_else(none, pa.scalar(None, a.type), a) for name, a in taken.items()})
        absent = {name: stores for name in columns if name not in rows.column_names}
        return ChangeBatch(
            source_index=kept,
            offset=records.offsets[kept],
            op=ops,
            commit=np.column_stack([np.zeros(n, dtype=np.uint64), numbers]),
            inner=np.zeros((n, 2), dtype=np.uint64),
            has_commit=np.ones(n, dtype=np.bool_),
            source_ts=np.zeros(n, dtype=np.int64),
            source_name=[STATED.name],
            source_code=np.zeros(n, dtype=np.int16),
            snapshot=np.zeros(n, dtype=np.bool_),
            half=np.zeros(n, dtype=np.uint8),
            key=pa.table({name: taken[name] for name in self.keys}),
            after=after,
            before=None,
            has_before=np.zeros(n, dtype=np.bool_),
            unavailable=self._unavailable(after, ops),
            absent={name: mask for name, mask in absent.items() if mask.any()},
            bad=bad,
            unknown=self._unknown(rows, records, stores),
            connector=STATED.name,
            clamped=Counter(),
        )

    def _unavailable(self, after: pa.Table, ops: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.bool_]]:
        found = {}
        for name in self.ignored_nulls & set(after.column_names):
            mask = after.column(name).is_null().to_numpy() & (ops == Op.UPDATE)
            if mask.any():
                found[name] = mask
        return found

    def _unknown(self, rows: pa.Table, records: Records, stores: npt.NDArray[np.bool_]) -> list[UnknownColumn]:
        if not stores.any():
            return []
        known = {column.name for column in self.table.columns} | {BUCKET, NUMBER, OP}
        first = int(records.offsets[0])
        return [
            UnknownColumn(name, first, f"Nullable({_MADE[self.kinds[name]]})" if self.kinds[name] in _MADE else None)
            for name in rows.column_names
            if name not in known and rows.column(name).null_count < len(rows)
        ]


def _cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The column as this type, and the places of values that do not fit, with the reason.

    Raises StreamFailed if no value of the column's type does.
    """
    given = column.combine_chunks()
    if pa.types.is_timestamp(given.type):
        unit = kind.unit if pa.types.is_timestamp(kind) else "s"
        given = given.cast(pa.timestamp(unit, given.type.tz), safe=False)
        if not pa.types.is_timestamp(kind) and not pa.types.is_date(kind):
            given = given.cast(pa.int64())  # DateTime travels as seconds
    faults: dict[int, str] = {}
    try:
        return given.cast(kind), faults
    except pa.ArrowNotImplementedError:
        raise StreamFailed(
            f"the DataFrame's column {name} is {column.type}, which does not become what the table's column takes "
            f"({kind})",
            hint="Cast it in the DataFrame, or leave it out (except_column_list).",
        ) from None
    except pa.ArrowInvalid:
        values = []
        for place in range(len(given)):
            try:
                values.append(given.slice(place, 1).cast(kind))
            except pa.ArrowInvalid as error:
                values.append(pa.nulls(1, kind))
                faults[place] = str(error)
    return pa.concat_arrays(values), faults


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
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def _words(rules: Rules, rows: pa.Table, version: str) -> Words:
    return rules.layout.from_arrow(rows.column(version))


@dataclass(frozen=True)
class ChangeRows:
    """Runs the tasks of a stream on the rows of one DataFrame, which has the columns `BUCKET`, `NUMBER` and `OP`."""

    frame: "DataFrame"
    spans: Mapping[int, Span]
    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included."""
    keys: tuple[str, ...]
    ignored_nulls: frozenset[str]
    least: Mapping[int, int]
    """Bucket → the lowest number of the batch."""

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute."""
        ranges = {task.partition: task for task in tasks if isinstance(task, RangeTask)}
        done = self._run(ranges) if ranges else {}
        return [done[t.partition] if isinstance(t, RangeTask) else run_configured(self.config, t) for t in tasks]

    def repeats(self, task: RangeTask) -> bool:
        """Whether some of the rows may have come before, in whatever batch."""
        known = task.state.sources.get(STATED.name)
        return task.attempt > 0 or (known is not None and self.least[task.partition] <= known.commit)

    def _run(self, tasks: Mapping[int, RangeTask]) -> dict[int, TaskResult]:
        kinds = dict(self.frame.dtypes)
        rows = (
            self.frame.where(f"{BUCKET} IN ({', '.join(map(str, tasks))})")
            .repartition(len(tasks), BUCKET)
            .sortWithinPartitions(BUCKET, NUMBER, *self.keys, OP)
            .mapInArrow(_runner(self, tasks, kinds), _RESULT)
            .collect()
        )
        found: dict[int, TaskResult] = {int(row.partition): pickle.loads(bytes(row.result)) for row in rows}
        for partition in tasks.keys() - found.keys():
            raise changed_meanwhile(partition)
        return found


def _runner(
    given: ChangeRows, tasks: Mapping[int, RangeTask], kinds: Mapping[str, str]
) -> Callable[[Batches], Batches]:
    work = {partition: pickle.dumps(task) for partition, task in tasks.items()}
    firsts = {partition: (given.spans[partition].first, given.spans[partition].rows) for partition in tasks}
    text, keys, ignored = given.config, given.keys, given.ignored_nulls
    repeats = {partition for partition, task in tasks.items() if given.repeats(task)}

    def ch_sink_changes(batches: Batches) -> Batches:
        from itertools import groupby

        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        for partition, group in groupby(runs(batches, BUCKET), key=lambda run: run[0]):
            task = tried(pickle.loads(work[partition]), attempt)
            assert isinstance(task, RangeTask)
            first, count = firsts[partition]
            source = _Numbered(task, (run for _, run in group), first, count)
            done = _apply(text, task, source, keys, ignored, kinds, repeats=partition in repeats or attempt > 0)
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition], pa.int64()), "result": [pickle.dumps(done)]}
            )

    return ch_sink_changes


def _apply(
    text: str,
    task: RangeTask,
    source: "_Numbered",
    keys: tuple[str, ...],
    ignored: frozenset[str],
    kinds: Mapping[str, str],
    *,
    repeats: bool,
) -> TaskResult:
    config = Config.from_task_json(text)

    def open_ports(wanted: Task) -> TaskPorts:
        ports = task_ports(config, wanted, lambda table, _before: RowDecoder(table, keys, ignored, kinds))
        left = newer(config, task, RowDecoder(task.table, keys, ignored, kinds)) if repeats else None
        return replace(ports, chunks=lambda first: source.chunks(first, keys, left))

    return run_task(task, open_ports)


@dataclass(slots=True)
class _Numbered:
    """The rows of one bucket, which are counted from an offset on."""

    task: RangeTask
    batches: Batches
    first: int
    rows: int

    def chunks(self, first: int, keys: tuple[str, ...], left: Newer | None) -> Iterator[Chunk]:
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
