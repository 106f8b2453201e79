"""Records that could not be applied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["DeadLetter", "DeadLetters", "StoredLetter"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The whole record that was not applied, and the reason."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    kind: str
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it is stored. Times in seconds since 1970."""

    letter: DeadLetter
    time: float
    retried: float | None = None
    """When it was settled, None if it was not."""
    outcome: str = ""
    """How: ``applied``, ``superseded``, ``waiting`` or ``dropped``."""


class DeadLetters(Protocol):
    """Stores records that cannot be applied; a repeat of the same offset is stored once."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None: ...

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """Offsets in [first, end) of the records that have not been applied since, in order."""
        ...
