"""The core's questions to a source system: the position of a change, and the quirks that matter to a sink."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import StreamFailed


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of n changes. Words are unsigned, the most significant first."""

    commit: npt.NDArray[np.uint64]
    """Shape (n, 2); 16 bits of the high word are used. Where the event states none: the least it can be by the
    position of the change itself (PostgreSQL's ``lsn``, Oracle's ``scn``), 0 if nothing is known."""
    inner: npt.NDArray[np.uint64]
    """Shape (n, 2): place of the single change inside its transaction."""
    has_commit: npt.NDArray[np.bool_]
    """False if the event states no commit position."""


class Columns(Protocol):
    """Decoded ``source`` blocks by field: what reads column by column needs no object for each."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]:
        """The blocks as objects, for sources that read them one by one."""
        ...

    def values(self, name: str) -> list[Any]:
        """A field's values."""
        ...

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        """A field's numbers, 0 for null; None if not all are integers of 64 bits."""
        ...

    def texts(self, name: str) -> pa.Array | None:
        """A field's texts as one array; None if not all are texts or null."""
        ...


Blocks = Sequence[Any] | Columns
"""Decoded ``source`` blocks."""
Strategy = Literal["source_position", "kafka_offset", "stated"]
"""The order of a source's changes unless the configuration says otherwise. ``stated``: each states its own."""


class NoBlock(msgspec.Struct, gc=False):
    """Nothing of the ``source`` block is read as a position."""


class Source:
    """A source system as Debezium's connectors describe it. Each states what differs from these values."""

    name: str
    connectors: frozenset[str]
    """Values of ``source.connector`` that mean this system."""
    wire: type[msgspec.Struct] = NoBlock
    """The fields of the ``source`` block that the position needs."""
    default_strategy: Strategy = "kafka_offset"
    unique_inner: bool = False
    """Inner positions are unique, and rise within a transaction."""
    inner_is_log: bool = False
    """Inner positions are places in the log that any other one compares with. Then they tell what loaded rows show,
    since a commit position may be that of an earlier transaction."""
    omits_values: bool = False
    """Unchanged values may come as the unavailable-value placeholder."""
    omits_long: bool = False
    """Only long values do: neither NULL nor empty ones."""
    deferrable: bool = False
    """Unique keys may be checked at the statement's or transaction's end, so that two keys can swap."""
    per_database: bool = False
    """One connector reads several databases, each of which has positions of its own."""

    def positions(self, blocks: Blocks) -> Positions:
        """Positions from decoded ``source`` blocks: none, unless a system says otherwise.

        Raises PositionError, naming the field, if a number does not fit; missing or impossible ones are 0.
        """
        zeros = np.zeros((len(blocks), 2), dtype=np.uint64)
        return Positions(zeros, zeros.copy(), np.zeros(len(blocks), dtype=np.bool_))


def stream_names(names: Sequence[str | None], databases: Sequence[str | None] | None) -> list[str]:
    """Names of the streams whose positions compare. ``databases``: None if all those of a connector do."""
    if databases is None:
        if names and names.count(names[0]) == len(names):
            return [names[0] or ""] * len(names)
        return list(names) if all(names) else [name or "" for name in names]  # type: ignore[arg-type]
    return [
        f"{name or ''}/{database}" if database else name or "" for name, database in zip(names, databases, strict=True)
    ]


def whole_numbers(values: Sequence[int | None]) -> npt.NDArray[np.int64]:
    """The numbers, 0 for None. Raises OverflowError for one that does not fit 64 bits."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        return np.fromiter([value or 0 for value in values], np.int64, len(values))


TABLE = ("db", "schema", "table")
"""Fields of the ``source`` block that name the source table."""


def source_tables(blocks: Blocks) -> frozenset[str]:
    """The whole names of the tables that blocks state."""
    columns = [values(blocks, part) for part in TABLE]
    uniform = all(len(set(column)) == 1 for column in columns)
    rows = {tuple(column[0] for column in columns)} if uniform else set(zip(*columns, strict=True))
    return frozenset(".".join(part for part in row if part) for row in rows if row[-1])


def values(blocks: Blocks, name: str) -> list[Any]:
    """A field of all blocks."""
    if isinstance(blocks, Sequence):
        return [getattr(block, name) for block in blocks]
    return blocks.values(name)


def numbers(blocks: Blocks, name: str) -> npt.NDArray[np.int64]:
    """An integer field of all blocks, 0 for None. Raises OverflowError for a number that does not fit 64 bits."""
    found = None if isinstance(blocks, Sequence) else blocks.numbers(name)
    return whole_numbers(values(blocks, name)) if found is None else found


def texts(blocks: Blocks, name: str) -> pa.Array | None:
    """A text field of all blocks as one array; None if they are objects, or it holds other values."""
    return None if isinstance(blocks, Sequence) else blocks.texts(name)


Words = Sequence[int] | npt.NDArray[np.uint64]


def words(high: Words | int, low: Words) -> npt.NDArray[np.uint64]:
    """Two columns of unsigned words as shape (n, 2)."""
    out = np.empty((len(low), 2), dtype=np.uint64)
    out[:, 0] = high
    out[:, 1] = low
    return out


def stated_positions(commit: Sequence[int], inner: Sequence[int], stated: Sequence[bool]) -> Positions:
    """Positions from numbers of up to 128 bits."""
    return Positions(wide(commit), wide(inner), np.array(stated, dtype=np.bool_))


def wide(values: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Numbers of up to 128 bits as words of shape (n, 2)."""
    low = (1 << 64) - 1
    return np.array([(v >> 64, v & low) for v in values], dtype=np.uint64).reshape(-1, 2)


_CELLS = "each of its values is an object of the cell's value and a 'set' flag, an update states only what it wrote"
_REASONS = {
    "cassandra": f"{_CELLS}, each has a deletion time, and rows, ranges and partitions are deleted by tombstones "
    "without the rows' keys"
}


class RefusedConnector(StreamFailed):
    """No table can follow the events of this connector."""


def refusal(connector: str) -> RefusedConnector | None:
    """The error that names the connector, the reason and the next step; None for a connector that is served."""
    inner = connector.rpartition(":")[2]
    reason = _REASONS.get(inner)
    return None if reason is None else _refused(inner, reason)


def refusal_of_cells(connector: str, image: Any) -> RefusedConnector | None:
    """The same for a connector whose row image (JSON as Python has it) consists of cells; None if it does not."""
    values = [value for value in image.values() if value is not None] if isinstance(image, dict) else []
    if not values or not all(isinstance(value, dict) and value.keys() >= {"value", "set"} for value in values):
        return None
    return _refused(connector.rpartition(":")[2], _CELLS)


def _refused(inner: str, reason: str) -> RefusedConnector:
    return RefusedConnector(
        f"events of the connector {inner!r} cannot be applied to a table: {reason}",
        hint="see docs/sources/other.md",
    )


FLATTENED = "flattened"
"""Connector name of flattened events; ``flattened:postgresql`` if the added fields name the source."""


class Flattened(Source):
    """A source whose positions are added fields, and often absent.

    The default strategy is the Kafka offset, whatever fields there are: a topic's versions must not change their
    meaning when a field is added, and the null values that are deletes may carry none. Then a create that is delivered
    again meets its own row. What is not known of the source is taken for the harder case.
    """

    def __init__(self, name: str, base: Source | None) -> None:
        """``base``: the source system, None if no field names it. Its database is not an added field."""
        self.base = base
        self.name = name
        self.connectors = frozenset((self.name,))
        self.omits_values = base is None or base.omits_values
        self.omits_long = base is not None and base.omits_long
        self.deferrable = base is None or base.deferrable
        if base is not None:
            self.wire, self.unique_inner = base.wire, base.unique_inner
            self.inner_is_log = base.inner_is_log

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the ``source`` block that make the position; empty if the source is not known."""
        return self.wire.__struct_fields__

    def positions(self, blocks: Blocks) -> Positions:
        """Positions, if their fields were added; 0 and absent otherwise. Raises PositionError as the source does."""
        return super().positions(blocks) if self.base is None else self.base.positions(blocks)
