"""Records that wait for a hand-over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Pending", "PendingRecord"]


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


class Pending(Protocol):
    """Records of one stream that wait for a hand-over, until they are resolved."""

    def put(self, topic_id: str, partition: int, records: Sequence[PendingRecord], token: str) -> None:
        """Store records; a repeat of an offset is stored once."""
        ...

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """The records that still wait, by offset."""
        ...

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """Mark records as applied (or given up)."""
        ...

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """Offsets in [first, end) that were resolved and have not been stored again since."""
        ...
