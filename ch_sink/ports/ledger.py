"""What a stream intended and finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Ledger", "PartitionTotals", "RangeIntent", "RangeResult"]


@dataclass(frozen=True, slots=True)
class RangeIntent:
    """An offset range [start, end) of one partition that is about to be read, and how it will be cut."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    chunk_offsets: int = 0
    chunk_bytes: int = 0
    attempt: int = 0
    """How many earlier intents overlap this range; the ledger fills it in."""


@dataclass(frozen=True, slots=True)
class RangeResult:
    """An offset range that was applied. It may end before the intended end (a barrier)."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    rows: int = 0
    deletes: int = 0
    dead_letters: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    state: str = ""
    """State of the partition at ``end``; opaque here."""
    started: float = 0.0
    """Seconds since 1970, as is ``finished``."""
    finished: float = 0.0
    source_time: int = 0
    """Source time of the newest event in milliseconds since 1970, 0 for none."""
    run_id: str = ""
    """Filled in by the ledger, as is ``batch``."""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """Sums over all results of one partition; a range that was done twice counts as it was done last."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    rows: int
    deletes: int
    dead_letters: int
    counts: Mapping[str, int]
    state: str
    finished: float
    source_time: int


class Ledger(Protocol):
    """What one stream intended and finished. Reads see all earlier writes; each write is one block.

    A stream has one owner: whoever claimed it last. An owner that lost it learns so at its next write.
    """

    def claim(self, run_id: str) -> None:
        """Take the stream. A job that was killed does not hold it any longer than its OS process lives.

        Raises LedgerConflict while a job on this host works on it; a job elsewhere is displaced.
        """
        ...

    def release(self) -> None:
        """Give the stream back; nothing happens when it was lost or never claimed."""
        ...

    def check_claim(self) -> None:
        """Raises LedgerConflict when another job has claimed the stream since."""
        ...

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        """Record what a batch is about to read; returns the ranges with their attempts. Raises LedgerConflict."""
        ...

    def results(self, results: Sequence[RangeResult]) -> None:
        """Record what the batch of the last ``intents`` did. Raises LedgerConflict, and then records nothing."""
        ...

    def state_at(self, topic_id: str, partition: int, offset: int) -> str | None:
        """The state with which the last range ended that ends exactly there."""
        ...

    def progress(self, topic_id: str) -> dict[int, int]:
        """Partition → next offset: the end of the unbroken run of finished ranges that begins with the first one."""
        ...

    def topic_ids(self) -> list[str]:
        """Identities of the topics that the stream has read, the last one first."""
        ...

    def last_intents(self) -> list[RangeIntent]:
        """The ranges of the newest batch that was intended, finished or not."""
        ...

    def history(self, limit: int) -> list[RangeResult]:
        """The newest results, newest first."""
        ...

    def totals(self) -> list[PartitionTotals]:
        """Sums by topic and partition, in that order."""
        ...

    def put_cut(self, topic_id: str, partition: int, offset: int) -> None:
        """A chunk ends at this offset because the table lacked columns, whatever columns later attempts find."""
        ...

    def cuts(self, topic_id: str) -> dict[int, list[int]]:
        """Partition → offsets of `put_cut`, in order."""
        ...

    def note(self, kind: str, text: str) -> None:
        """Record a fact of the stream (a truncate's floor, a skipped stretch). Raises LedgerConflict."""
        ...

    def notes(self, kind: str) -> list[str]:
        """The texts noted under this kind, oldest first."""
        ...
