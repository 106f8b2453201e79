"""What the page asks of the job."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["PageData"]


class PageData(Protocol):
    """What the page shows. Methods may block; each runs in its request's thread. They raise ChSinkError."""

    def streams(self) -> Sequence[Mapping[str, Any]]:
        """The streams as ``ch_sink status --json`` has them, with figures and history of this job."""
        ...

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        """The newest dead letters of a stream, the newest first; ``whole``: with their records."""
        ...

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        """The biography of one row, as ``ch_sink explain --json`` has it."""
        ...

    def retry(self, stream: str) -> Mapping[str, Any]:
        """Retry a stream's dead letters; what became of them."""
        ...
