"""A plan: what has to be done for one chunk."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import BadRecord, HandoverId
from ch_sink.order import BackwardStep, State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.ports import Insert

__all__ = ["HandoverEntries", "OpenedSwap", "Plan", "Waiting"]


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


@dataclass(slots=True)
class Plan:
    """What has to be done for one chunk, in this order: hand-over, pending, inserts, dead letters."""

    state: State
    inserts: list[Insert] = field(default_factory=list)
    handover: HandoverEntries | None = None
    pending: list[Waiting] = field(default_factory=list)
    """Events that wait for a hand-over."""
    swaps: list[OpenedSwap] = field(default_factory=list)
    closers: dict[bytes, int] = field(default_factory=dict)
    """Kafka key → place of the delete half that closed a swap which an earlier chunk had left open."""
    bad: list[BadRecord] = field(default_factory=list)
    barrier: Barrier | None = None
    steps: list[BackwardStep] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """events, upserts, deletes, moves, redelivered, superseded, looked_up, filled, tombstone, heartbeat, …"""
    reconciles: bool = False
    """The content depends on what was stored: the token must depend on the content."""
    last_source_ts: int = 0
    unit: str = ""
    """What begins the tokens of rollups if this is no chunk, but single records of one or more chunks."""

    @property
    def needs_records(self) -> bool:
        """Whether carrying it out stores records themselves, not only what became of them."""
        return bool(self.bad or self.pending)
