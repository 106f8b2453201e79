"""A plan for one chunk: what goes into it, what it says, and what became of it."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.key_layouts import KeyForm
from ch_sink.model.change import BadRecord, ChangeBatch, HandoverId, Records
from ch_sink.model.counts import Counts
from ch_sink.model.policy import TopicProfile
from ch_sink.order import BackwardStep, State, Trace
from ch_sink.pipeline.barrier import Barrier
from ch_sink.ports import Handover, History, Insert, RowLookup


class BatchDecoder(Protocol):
    """Turns the records of a chunk into change events (`ch_sink.decode.Decoder`)."""

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """The profile for these records: the given one, extended by what these records are the first to show."""
        ...

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """The change events of these records, a function of them and their profile.

        ``waited``: the records come from the pending table; null values among them are deletes.
        """
        ...

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """The values of each Kafka key, which are equal for keys of one row; None for a key that cannot be read."""
        ...

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        """The forms of Kafka keys, in the order in which the forms come first."""
        ...


Failed = Callable[[int, int], Collection[int]]
"""First offset, end → offsets of the partition's records that became dead letters and were not applied since."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that planning may query."""

    lookup: RowLookup | None = None
    handover: Handover | None = None
    history: History | None = None
    failed: Failed | None = None
    trace: Trace | None = None
    """Follows one key through the chunks, for `ch_sink explain`."""


Changed = Literal["", "unknown", "other"]
"""Whether an earlier attempt at a range had another configuration, table or version of ch_sink. ``unknown``: a version
that did not record it."""


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about the records of a chunk that are known before it is planned."""

    waiting: Mapping[bytes, int] = field(default_factory=dict)
    """Kafka keys whose earlier changes wait for a hand-over, with the offset of the first that does."""
    assigned: Mapping[int, tuple[int, int]] | None = None
    """Offset → (epoch, commit position), for records that were ordered when they arrived."""
    released: Collection[int] = ()
    """Offsets whose records waited in an earlier attempt and have been applied since."""
    repeats: bool = False
    """An earlier attempt may have stored a part of the chunk."""
    changed: Changed = ""
    """Whether that attempt may have made other rows of it."""
    grouped: bool = False
    """Whether that attempt may have stored it together with chunks of other partitions, under a token of theirs."""


@dataclass(frozen=True, slots=True)
class HandoverEntries:
    """Values for the create halves of key changes; stored before any row of the chunk is."""

    ids: Sequence[HandoverId]
    rows: pa.Table
    known: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting event: its place in the Records, and the order assigned to it."""

    index: int
    epoch: int
    commit: int
    awaits: HandoverId | None = None
    """The hand-over that it needs; None if it waits behind an earlier event of its key."""


@dataclass(frozen=True, slots=True)
class OpenedSwap:
    """A create half that took a key whose former row was still to leave, by its place in the Records."""

    index: int
    inner: int
    closed: int = -1
    """Place of the delete half that closed the swap, -1 while it is open."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions for one chunk, in this order: hand-over, pending, inserts, dead letters.

    It is made once, of everything that is known, and carried out as it is.
    """

    state: State
    inserts: Sequence[Insert] = ()
    """Without what an earlier attempt is known to have stored."""
    handover: HandoverEntries | None = None
    pending: Sequence[Waiting] = ()
    """Events that wait for a hand-over."""
    swaps: Sequence[OpenedSwap] = ()
    closers: Mapping[bytes, int] = field(default_factory=dict)
    """Kafka key → place of the delete half that closed a swap which an earlier chunk had left open."""
    bad: Sequence[BadRecord] = ()
    barrier: Barrier | None = None
    steps: Sequence[BackwardStep] = ()
    counts: Counter[str] = field(default_factory=Counter)
    """events, upserts, deletes, moves, redelivered, superseded, looked_up, filled, tombstone, heartbeat, …"""
    reconciles: bool = False
    """The content depends on what was stored: the token must depend on the content."""
    last_source_ts: int = 0

    @property
    def needs_records(self) -> bool:
        """Whether carrying it out stores records themselves, not only what became of them."""
        return bool(self.bad or self.pending)

    @property
    def only_inserts(self) -> bool:
        """Whether carrying it out is nothing but its inserts."""
        more = self.handover, self.pending, self.swaps, self.closers, self.bad, self.barrier
        return bool(self.inserts) and not any(more) and not any(insert.partial for insert in self.inserts)


@dataclass(frozen=True, slots=True)
class StreamName:
    """The name in deduplication tokens and stored records."""

    stream: str
    topic: str
    topic_id: str
    partition: int
    attempt: int = 0
    """How many earlier batches overlap this range."""
    batch: int = 0
    """The batch of the range, by its number in the ledger; 0 for waiting changes."""

    def token(self, first: int, end: int, label: str, *, execution: str = "") -> str:
        """Deduplication token of one insert: the same token always means the same rows.

        ``execution`` belongs to the tokens of reconciling inserts, whose content differs each time.
        """
        parts = [self.stream, self.topic_id, str(self.partition), f"{first}-{end - 1}", label]
        if execution:
            parts.append(f"execution-{execution}")
        return "/".join(parts)


@dataclass(slots=True)
class Applied:
    """The result of a chunk, or of a group of waiting changes."""

    state: State
    first: int = 0
    end: int = 0
    """The next offset: the end of the chunk, or the barrier."""
    counts: Counts = field(default_factory=Counts)
    """Records behind a barrier are not counted: they are read again."""
    steps: list[BackwardStep] = field(default_factory=list)
    barrier: Barrier | None = None

    def add(self, earlier: "Applied") -> "Applied":
        """Add the figures of what was stored before this; returns itself."""
        self.counts.add(earlier.counts)
        return self
