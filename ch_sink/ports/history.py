"""Earlier records of a partition."""

from typing import Protocol

from ch_sink.model.change import Records

__all__ = ["History"]


class History(Protocol):
    """Earlier records of the same partition."""

    def before(self, offset: int, limit: int) -> Records:
        """Up to ``limit`` records at offsets below ``offset``, the nearest ones, in offset order."""
        ...
