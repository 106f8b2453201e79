"""Many rows at once: the snapshot rows of offset ranges, gathered by table partition into large blocks.

    ranges ─▶ `read_piece`: the stream's own pipeline, whose inserts are kept as runs ─▶ sorted by unit and order
      ─▶ `blocks_of`: the runs of one unit, joined to blocks of a million rows ─▶ the table

A unit is a table partition; where a table has only one, each range is a unit. Ranges of one partition may be read at
the same time, since what a snapshot row becomes does not depend on the rows before it; `Piece` has what it takes to
prove that afterwards. The same ranges give the same blocks, so their tokens hold for a repetition.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.model.policy import Policy
from ch_sink.model.profile import TopicProfile
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.inputs import BatchDecoder, Ports
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.target import Target
from ch_sink.ports import DeadLetters, Fence, History, Insert, StoredRows, TableWriter
from ch_sink.stream.run_task import task_name, without_collector
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type

__all__ = [
    "BulkPorts",
    "Load",
    "NoSnapshotRow",
    "Piece",
    "Run",
    "Wave",
    "WaveDone",
    "blocks_of",
    "read_piece",
    "store_units",
]

ROWS, BYTES = 1_000_000, 256 << 20
"""The most of a block."""
_WHOLE = ("all", "*")
"""Labels of a table with one partition, and of one whose partitions only the server can compute."""


class NoSnapshotRow(StreamFailed):
    """A range holds a change that is no row of a snapshot."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the change at offset {offset} is no row of a snapshot")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one chunk for one unit."""

    unit: str
    order: int
    """Place among the runs of its wave."""
    rows: bytes
    """Arrow's stream format."""


@dataclass(slots=True)
class Piece:
    """What reading one range came to."""

    state: State
    """At the end of the range."""
    rows: int = 0
    records: int = 0
    dead_letters: int = 0
    steps: int = 0
    """Times that the source's position stepped back."""
    bottom: int = 0
    top: int = 0
    """Lowest and highest version of its rows, 0 if they have none."""
    source_time: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    barrier: Barrier | None = None
    failure: ChSinkError | None = None


@dataclass(frozen=True, slots=True)
class Wave:
    """Ranges that are read and stored together."""

    number: int
    label: str
    """Begins the tokens of its blocks, and is in the table's comment while this load fills it."""
    tasks: tuple[RangeTask, ...]


@dataclass(frozen=True, slots=True)
class WaveDone:
    """What a wave came to."""

    pieces: tuple[Piece, ...]
    """In the order of the tasks."""
    blocks: int
    rows: int


class Load(Protocol):
    """Reads and stores the ranges of a wave."""

    @property
    def slots(self) -> int:
        """How many ranges it reads at the same time."""
        ...

    def __call__(self, wave: Wave, /) -> WaveDone:
        """A range that fails is in the result; storing raises ChSinkError."""
        ...


@dataclass(frozen=True, slots=True)
class BulkPorts:
    """What reading a range works with."""

    policy: Policy
    decoder: Callable[[TargetTable, bool], BatchDecoder]
    """For a table, with before images or not."""
    chunks: Callable[[RangeTask, int], Iterator[Chunk]]
    """The chunks of the task's range from this offset on."""
    history: Callable[[int], History | None]
    """Earlier records of a partition."""
    letters: DeadLetters


@dataclass(slots=True)
class _SnapshotOnly:
    """A decoder that refuses every event which is no row of a snapshot."""

    inner: BatchDecoder

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        return self.inner.learn(records, profile, history)

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        batch = self.inner.decode(records, profile, waited=waited)
        others = np.flatnonzero(batch.op != Op.READ)
        if len(others):
            raise NoSnapshotRow(int(batch.offset[others[0]]))
        return batch

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        return self.inner.key_values(keys, profile)


@dataclass(slots=True)
class _Kept:
    """A TableWriter that keeps what it is given."""

    inserts: list[Insert] = field(default_factory=list)

    def write(self, insert: Insert, token: str, *, fence: Fence | None = None, by_content: bool = False) -> int:
        self.inserts.append(insert)
        return int(insert.rows.num_rows)


@dataclass(frozen=True, slots=True)
class _Empty:
    """The RowLookup of an empty table."""

    table: TargetTable

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        columns = [pa.field(c.name, arrow_type(c.type)) for c in self.table.columns if c.insertable]
        return StoredRows(pa.schema(columns).empty_table())


def read_piece(task: RangeTask, number: int, ports: BulkPorts) -> Generator[Run, None, Piece]:
    """The runs of a range into a table that is empty, chunk by chunk. ``number``: place of the task in its wave."""
    piece, kept, state = Piece(task.state), _Kept(), task.state
    target = replace(Target.of(task.table, ports.policy), separate=None)  # runs are shuffled by table partition
    sink = PartitionSink(
        task_name(task),
        target,
        lambda before: _SnapshotOnly(ports.decoder(task.table, before)),
        Ports(lookup=_Empty(task.table), history=ports.history(task.partition)),
        kept,
        ports.letters,
    )
    made = 0
    try:
        for chunk in ports.chunks(task, task.start):
            with without_collector():
                done = sink.apply(chunk, state)
            state = piece.state = done.state
            piece.rows += done.rows
            piece.records += done.records
            piece.dead_letters += done.dead_letters
            piece.steps += len(done.steps)
            piece.top, piece.source_time = max(piece.top, done.top), max(piece.source_time, done.last_source_ts)
            piece.counts.update(done.counts)
            piece.barrier = done.barrier
            for insert in kept.inserts:
                low = target.bottom_version(insert.rows)
                piece.bottom = min(piece.bottom or low, low)
                whole = insert.label.partition("/")[2] in _WHOLE
                unit = f"{insert.label}#{number}" if whole else insert.label
                yield Run(unit, (number << 32) + made, _to_bytes(insert.rows))
                made += 1
            kept.inserts.clear()
            if done.barrier is not None:
                break
    except ChSinkError as error:
        piece.failure = error
    return piece


def store_units(
    runs: Iterable[Run],
    wave: Wave,
    target: Target,
    writer: TableWriter,
    mine: Callable[[], bool],
    rows: int = ROWS,
) -> tuple[int, int]:
    """Store runs that are sorted by unit and order; returns the number of blocks and of rows.

    ``mine``: whether the table is still the one that this load fills. Raises StreamFailed if not; ChSinkError.
    """
    blocks = stored = 0
    for unit, its_runs in groupby(runs, key=lambda run: run.unit):
        for number, block in enumerate(blocks_of(its_runs, rows)):
            if not mine():
                raise StreamFailed(
                    f"{target.table.qualified} is not the table any more that this load began to fill",
                    hint="Another run has begun anew; let that one go on.",
                )
            writer.write(
                Insert(block, unit), f"{wave.label}/{wave.number}/{unit}/{number}", by_content=not target.exclusive
            )
            blocks, stored = blocks + 1, stored + block.num_rows
    return blocks, stored


def blocks_of(runs: Iterable[Run], rows: int = ROWS, size: int = BYTES) -> Iterator[pa.Table]:
    """The runs of one unit, joined. Runs of other columns begin a new block."""
    held: list[pa.Table] = []
    count = used = 0
    for run in runs:
        table = _from_bytes(run.rows)
        full = count + table.num_rows > rows or used + table.nbytes > size
        if held and (full or held[0].schema != table.schema):
            yield pa.concat_tables(held)
            held, count, used = [], 0, 0
        held.append(table)
        count, used = count + table.num_rows, used + table.nbytes
    if held:
        yield pa.concat_tables(held)


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _from_bytes(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()
