"""What the page asks of the job."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["PageData"]


class PageData(Protocol):
    """What the page shows. Methods may block; they run outside the server's loop and raise ChSinkError."""

    def streams(self) -> Sequence[Mapping[str, Any]]:
        """The streams as ``ch_sink status --json`` has them, with figures and history of this job."""
        ...

    def dead_letters(self, stream: str) -> Sequence[Mapping[str, Any]]:
        """The newest dead letters of a stream."""
        ...

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        """The biography of one row, as ``ch_sink explain --json`` has it."""
        ...

    def retry(self, stream: str) -> Mapping[str, Any]:
        """Retry a stream's dead letters; what became of them."""
        ...
