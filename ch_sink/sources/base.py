"""What the core asks of a source system: the position of a change, and the quirks that matter to a sink."""

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
"""What orders a source's changes unless the configuration says otherwise. ``stated``: what each of them states."""


class Source(Protocol):
    """A source system as Debezium's connectors describe it."""

    @property
    def name(self) -> str: ...

    @property
    def connectors(self) -> frozenset[str]:
        """Values of ``source.connector`` that mean this system."""
        ...

    @property
    def wire(self) -> type[msgspec.Struct]:
        """The fields of the ``source`` block that the position needs."""
        ...

    @property
    def default_strategy(self) -> Strategy: ...

    @property
    def unique_inner(self) -> bool:
        """Whether inner positions are unique, and rise within a transaction."""
        ...

    @property
    def inner_is_log(self) -> bool:
        """Whether inner positions are places in the log that any other one compares with.

        Then they tell what loaded rows show, since a commit position may be that of an earlier transaction.
        """
        ...

    @property
    def omits_values(self) -> bool:
        """Whether unchanged values may come as the unavailable-value placeholder."""
        ...

    @property
    def whole_before(self) -> bool:
        """Whether a before image, if there is one, holds the whole row."""
        ...

    @property
    def creates_new_rows(self) -> bool:
        """Whether a create is always of a new row; else snapshots may send existing rows as creates."""
        ...

    @property
    def deferrable(self) -> bool:
        """Whether unique keys may be checked at the statement's or transaction's end, so that two keys can swap."""
        ...

    @property
    def per_database(self) -> bool:
        """Whether one connector reads several databases, each of which has positions of its own."""
        ...

    def positions(self, blocks: Blocks) -> Positions:
        """Positions from decoded ``source`` blocks.

        Raises PositionError, naming the field, if a number does not fit; missing or impossible ones are 0.
        """
        ...


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


def split(values: Sequence[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Numbers of up to 128 bits as their high and their low words."""
    low = (1 << 64) - 1
    return np.array([v >> 64 for v in values], dtype=np.uint64), np.array([v & low for v in values], dtype=np.uint64)


_REASONS = {
    "cassandra": (
        "each of its values is an object of the cell's value, its deletion time and a 'set' flag, an update states "
        "only the cells that it wrote, and rows, ranges and partitions are deleted by tombstones without the rows' keys"
    ),
}


class RefusedConnector(StreamFailed):
    """No table can follow the events of this connector."""


def refusal(connector: str) -> RefusedConnector | None:
    """The error that names the connector, the reason and the next step; None for a connector that is served."""
    inner = connector.rpartition(":")[2]
    reason = _REASONS.get(inner)
    if reason is None:
        return None
    return RefusedConnector(
        f"events of the connector {inner!r} cannot be applied to a table: {reason}",
        hint="see docs/sources/other.md",
    )


FLATTENED = "flattened"
"""Connector name of flattened events; ``flattened:postgresql`` if the added fields name the source."""


class _Nothing(msgspec.Struct, gc=False):
    """No field at all."""


class Flattened:
    """A source whose positions are added fields, and often absent.

    The default strategy is the Kafka offset, whatever fields there are: a topic's versions must not change their
    meaning when a field is added, and the null values that are deletes may carry none. What is not known of the
    source is taken for the harder case.
    """

    def __init__(self, name: str, base: Source | None) -> None:
        """``base``: the source system, None if no field names it."""
        self.base = base
        self.name = name
        self.connectors = frozenset((self.name,))
        self.wire: type[msgspec.Struct] = _Nothing if base is None else base.wire
        self.default_strategy: Literal["source_position", "kafka_offset"] = "kafka_offset"
        self.omits_values = base is None or base.omits_values
        self.unique_inner = base is not None and base.unique_inner
        self.inner_is_log = base is not None and base.inner_is_log
        self.whole_before = base is not None and base.whole_before
        # Ordered by offset, a create that is delivered again meets its own row.
        self.creates_new_rows = False
        self.deferrable = base is None or base.deferrable
        self.per_database = False  # the database is not an added field that is asked for

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the ``source`` block that make the position; empty if the source is not known."""
        return self.wire.__struct_fields__

    def positions(self, blocks: Blocks) -> Positions:
        """Positions, if their fields were added; 0 and absent otherwise. Raises PositionError as the source does."""
        if self.base is not None:
            return self.base.positions(blocks)
        zeros = np.zeros((len(blocks), 2), dtype=np.uint64)
        return Positions(zeros, zeros.copy(), np.zeros(len(blocks), dtype=np.bool_))
