"""The choice of the server whose answer counts where a URL leads to several: the one place that decides it.

A read of a replicated table has to see every earlier write, although a balancer may send each request elsewhere.
``select_sequential_consistency`` promises that only for writes with a quorum. Without one, a replica is asked to fetch
all parts that were acknowledged before (``SYSTEM SYNC REPLICA``), and an answer counts only if it comes from a replica
that was. So any replica may answer, also after another one has failed, but none that lacks a part.

A command that makes tables of its own, which only one server has, stays with that server: see `Replicas.only`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.types.sql import literal, quote

T = TypeVar("T")
Settings = Mapping[str, str | int]

_TRIES = 24
_SYNCS = frozenset({0, 3, 5, 8, 10, 13, 15, 18, 20})
"""The tries before which a server is brought up to date: a balancer that takes turns never sends two requests in a row
to one server, and at even distances it would send all of these to the same."""
_FRESH: Settings = {"select_sequential_consistency": 1}
_OF_REPLICA: Settings = {
    **_FRESH,
    # A delete that this replica has still to carry out counts as carried out.
    "apply_mutations_on_fly": 1,
}
_GUARDED, _UNKNOWN_TABLE = 395, 60
"""FUNCTION_THROW_IF_VALUE_IS_NON_ZERO and UNKNOWN_TABLE: with these a statement has done nothing."""


class Stored(Protocol):
    """A table, as a request names what it reads."""

    @property
    def database(self) -> str: ...

    @property
    def name(self) -> str: ...


class AnsweredElsewhere(ClickHouseError):
    """Another server than the one that a command stays with has carried out a statement."""


def has_quorum(settings: Mapping[str, str]) -> bool:
    """Whether these settings make every insert visible to every later read with sequential consistency."""
    return settings.get("insert_quorum", "0") not in ("", "0") and settings.get("insert_quorum_parallel", "1") == "0"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The servers behind one URL."""

    answered_by: Callable[[], str]
    """The server that answered the last request of this thread; empty if none did."""
    sync: Callable[[str], None]
    """Let the server that gets this request fetch all parts of a table. Raises ClickHouseError."""
    lags: Callable[[Stored], bool]
    """Whether a server may lack rows of a table that another one has stored. Raises ClickHouseError."""
    part: Callable[[], None] = lambda: None
    """Close the connections: a balancer may lead the next one elsewhere."""

    def read(self, ask: Callable[[Settings], T], of: Stored | None) -> T:
        """The result of ``ask``, which sees all earlier writes to the table. ``ask`` takes further settings.

        Raises as `current` does.
        """
        if of is None or not self.lags(of):
            return ask(_FRESH if of is not None else {})
        return self.current(_qualified(of), lambda: ask(_OF_REPLICA))

    def act(self, act: Callable[[Settings], None], of: Stored | None) -> None:
        """The same for a statement. Where rows may be lacking, it fails on a server that may lack them."""
        if of is None or not self.lags(of):
            act(_FRESH if of is not None else {})
            return
        table = f"{of.database}.{of.name}"

        def guarded(servers: Collection[str]) -> None:
            if "" in servers:  # a proxy keeps the names to itself, and nothing tells servers apart
                act(_OF_REPLICA)
                return
            # displayName() is what the header X-ClickHouse-Server-Display-Name of an answer says.
            names = ", ".join(map(literal, sorted(servers)))
            guard = literal(f"throwIf(displayName() NOT IN ({names})) = 0")
            act({**_OF_REPLICA, "additional_table_filters": f"{{{literal(table)}: {guard}}}"})

        self.carry_out(_qualified(of), guarded)

    def current(self, table: str, read: Callable[[], T]) -> T:
        """The result of ``read``, answered by a server that had all parts of the table when this call began.

        Raises:
            ClickHouseUnavailable: each answer came from another server.
            ClickHouseError: what ``read`` and ``sync`` raise.
        """
        for ready in self._turns(table):
            answer = read()
            if self.answered_by() in ready:
                return answer
        raise _scattered(table)

    def carry_out(self, table: str, act: Callable[[Collection[str]], T]) -> T:
        """Run a statement that reads the table, on a server that has all its parts.

        ``act`` gets the names of such servers, and does nothing on others. Raises as `current`.
        """
        for ready in self._turns(table):
            try:
                answer = act(ready)
            except ClickHouseError as error:
                if error.code != _GUARDED or self.answered_by() in ready:
                    raise
                continue
            if self.answered_by() in ready:
                return answer
        raise _scattered(table)

    def only(self, server: str, act: Callable[[], T], *, again: bool) -> T:
        """The result of ``act``, answered by this server.

        Args:
            again: ``act`` may be repeated, whatever it did on another server.

        Raises:
            AnsweredElsewhere: another server carried out what may not be repeated.
            ClickHouseUnavailable: no answer came from this server.
            ClickHouseError: what ``act`` raises there.
        """
        for _ in range(_TRIES):
            try:
                answer = act()
            except ClickHouseError as error:
                if self.answered_by() in ("", server) or not (again or error.code in (_GUARDED, _UNKNOWN_TABLE)):
                    raise
            else:
                if self.answered_by() == server:
                    return answer
                if not again:
                    raise AnsweredElsewhere(
                        f"server {self.answered_by()} answered, and this command works on server {server}",
                        hint=_ONE_SERVER,
                    )
            self.part()
        raise ClickHouseUnavailable(
            f"none of {_TRIES} requests was answered by server {server}, which this command works on", hint=_ONE_SERVER
        )

    def _turns(self, table: str) -> Iterator[set[str]]:
        """The servers that have all parts, before each of the tries."""
        ready: set[str] = set()
        for turn in range(_TRIES):
            if turn in _SYNCS:
                self.sync(table)
                ready.add(self.answered_by())
            yield ready


_ONE_SERVER = (
    "Name one server for this command: CH_SINK__CLICKHOUSE__URL=http://that-server:8123; or let the balancer keep a "
    "client on one server."
)


def _scattered(table: str) -> ClickHouseUnavailable:
    return ClickHouseUnavailable(
        f"each of {_TRIES} reads of {table} was answered by a server that lacks some of its parts",
        hint="Let the balancer keep a client on one server, or set insert_quorum and insert_quorum_parallel: 0 in "
        "clickhouse.settings.",
    )


def _qualified(table: Stored) -> str:
    return f"{quote(table.database)}.{quote(table.name)}"
