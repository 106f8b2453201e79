"""Records that could not be applied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["DeadLetter", "DeadLetters", "StoredLetter"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was not applied, whole, with the reason."""

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
    """A dead letter as it is kept. Times in seconds since 1970."""

    letter: DeadLetter
    time: float
    retried: float | None = None
    """When it was applied after all."""


class DeadLetters(Protocol):
    """Where records go that cannot be applied; a repeat of the same offset is stored once."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None: ...
