"""Records that wait for a hand-over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ch_sink.ports.fence import Fence

__all__ = ["AppliedSwap", "Pending", "PendingRecord"]


@dataclass(frozen=True, slots=True)
class AppliedSwap:
    """What a create half leaves behind that was applied while the former row of its key was still to leave."""

    inner: int
    """Its position inside the transaction, by which the former row is handed over."""
    closed: int = -1
    """Offset of the delete half that closed the swap in the same release, -1 if the swap is still open."""


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record that waits for a hand-over, with the order position that it had on arrival."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    epoch: int
    commit: int
    """Effective commit position (80 bits)."""
    since: float = 0.0
    """When it was stored, in seconds since 1970."""
    swap: AppliedSwap | None = None
    """If it does not wait any more: the swap of keys that it opened. Such a record has no value."""


class Pending(Protocol):
    """Records of one stream that wait for a hand-over, until they are resolved."""

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Store records; a repeat of an offset is stored once. One with a swap counts as applied.

        Raises LedgerConflict if the execution is superseded: what has been applied since must not wait again.
        """
        ...

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """The records that still wait, and those whose swap may still be open, by offset."""
        ...

    def places(self) -> dict[tuple[str, int], int]:
        """Topic ids and partitions of which `open` returns anything, in order: how many records wait there."""
        ...

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """Mark records as applied (or given up), and their swaps as over."""
        ...

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """Offsets in [first, end) that were applied and do not wait again since."""
        ...
