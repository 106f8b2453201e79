"""What the resolution of a batch has to look at, and what comes of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.merge.pool import Pool, Refs
from ch_sink.model.change import BadRecord, HandoverId
from ch_sink.order import Layout
from ch_sink.ports import StoredRows

__all__ = ["UNSET", "Bools", "Resolved", "Scope", "Swapped"]

UNSET = -2
"""An origin that was not overridden: the value is the event's own."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scope:
    """What the table and the source demand of the resolution."""

    places: tuple[str, ...] = ()
    """Place columns that are not in the key: a change of their values moves the row."""
    sorting: tuple[str, ...] = ()
    """Those of them that are part of the sorting key as they are: if they change, so does the place."""
    varying: tuple[str, ...] = ()
    """Those of them that the server sets to another value each time if an event does not state them."""
    sharding: tuple[str, ...] = ()
    """Those of them by which a row's server is chosen."""
    partitions: Callable[[pa.Table], Sequence[tuple[str, npt.NDArray[np.int64]]] | None] = lambda _: None
    """Row numbers by table partition; the answer is None if only the server knows."""
    omits_values: bool = False
    deferrable: bool = False
    creates_new_rows: bool = True
    """A create is always of a row that is not there, so that it leaves no old place."""
    whole_before: bool = False
    """``before`` images are whole and may be trusted for the old place."""
    lookup_all: bool = False
    """Every touched key is looked up (collapsing engines)."""
    layout: Layout | None = None
    version_column: str | None = None
    deleted: tuple[str, int] | None = None
    """Column and value that mark a stored row as deleted."""
    history: bool = False
    """The table keeps every change, so that a lookup finds what it held before the chunk, whatever an earlier attempt
    has stored of it."""
    unique_versions: bool = True
    """Equal versions mean the same event (not so for time versions)."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The delete of a key's former owner, whose successor holds the key already."""

    event: int
    row: int
    """The former owner's row, -1 if it is not known."""
    below: int
    """A version just below the successor's, 0 if that is not known."""


@dataclass(slots=True)
class Resolved:
    """The events of a batch, resolved. Arrays have one entry per event."""

    codes: npt.NDArray[np.int64]
    keys: int
    apply: Bools
    """False: skipped (re-delivered, superseded, dropped by a swap), pending or bad."""
    image: Refs
    """Row that holds the event's values: its own for c, r, u; the last known one for d."""
    previous: Refs
    """Row that the key had before, if it is known and matters."""
    origin: dict[str, Refs]
    """Column → row that its value comes from, for columns with unavailable values."""
    pool: Pool
    bases: dict[str, dict[int, int]]
    """Column → event → row that holds the value from which the event's own value is to be made."""
    superseded: Bools
    """A stored row of the key has this version or a higher one."""
    stored: StoredRows | None = None
    stored_codes: npt.NDArray[np.int64] | None = None
    stored_start: int = 0
    stored_versions: list[int] = field(default_factory=list)
    handover: list[tuple[HandoverId, int]] = field(default_factory=list)
    """(identity, row number or -1): values that the delete halves hand over."""
    handover_origin: dict[str, list[int]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    """Events that wait for a hand-over, and later ones of the same keys."""
    awaited: dict[int, HandoverId] = field(default_factory=dict)
    """The hand-over for which an event waits; events without one wait for an earlier one of their key."""
    opened: dict[int, int] = field(default_factory=dict)
    """Create halves that opened a swap of keys, each with the delete half that closed it, -1 while it is open."""
    closers: dict[bytes, int] = field(default_factory=dict)
    """Kafka keys that an earlier chunk left doubled, each with the delete half that closed the swap."""
    bad: list[BadRecord] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    doubled: dict[bytes, int] = field(default_factory=dict)
    """Kafka keys of which two rows live while their transaction goes on, with the inner position that made them two."""
    swapped: list[Swapped] = field(default_factory=list)
    settled: set[bytes] = field(default_factory=set)
    """Kafka keys whose former owner left in this chunk."""

    def value_refs(self, column: str, events: npt.NDArray[np.int64]) -> Refs:
        """Where a column's values of these events come from."""
        base = self.image[events]
        if column in self.origin:
            mine = self.origin[column][events]
            return np.where(mine >= -1, mine, base)
        return base
