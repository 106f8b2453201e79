"""Reads of a replicated table that see every earlier write, although a balancer may send each request elsewhere.

``select_sequential_consistency`` promises that only for writes with a quorum. Without one, a replica is asked to fetch
all parts that were acknowledged before (``SYSTEM SYNC REPLICA``), and an answer counts only if it comes from a replica
that was. So any replica may answer, also after another one has failed, but none that lacks a part.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ch_sink.errors import ClickHouseUnavailable

__all__ = ["Replicas", "has_quorum"]

T = TypeVar("T")

_TRIES = 24
_READS = 3
"""Reads per sync: a balancer that takes turns never sends two requests in a row to one server."""


def has_quorum(settings: Mapping[str, str]) -> bool:
    """Whether these settings make every insert visible to every later read with sequential consistency."""
    return settings.get("insert_quorum", "0") not in ("", "0") and settings.get("insert_quorum_parallel", "1") == "0"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The servers behind one URL."""

    answered_by: Callable[[], str]
    """The server that answered the last request of this thread."""
    sync: Callable[[str], None]
    """Let the server that gets this request fetch all parts of a table. Raises ClickHouseError."""

    def current(self, table: str, read: Callable[[], T]) -> T:
        """What ``read`` returns, answered by a server that had all parts of the table when this call began.

        Raises:
            ClickHouseUnavailable: each answer came from another server.
            ClickHouseError: what ``read`` and ``sync`` raise.
        """
        ready: set[str] = set()
        for turn in range(_TRIES):
            if turn % _READS == 0:
                self.sync(table)
                ready.add(self.answered_by())
            answer = read()
            if self.answered_by() in ready:
                return answer
        raise ClickHouseUnavailable(
            f"each of {_TRIES} reads of {table} was answered by another server than those that have all its parts",
            hint="Let the balancer keep a client on one server, or set insert_quorum and insert_quorum_parallel: 0 in "
            "clickhouse.settings.",
        )
