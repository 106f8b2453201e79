"""The right to insert: one execution of a task has it, until a newer execution or a newer claim takes it."""

from typing import Protocol

__all__ = ["Fence"]


class Fence(Protocol):
    """One execution of a task, registered in the ledger; of a partition's executions only the newest may insert."""

    @property
    def execution(self) -> str:
        """Identifies the execution in deduplication tokens and query ids; no other execution ever has the same."""
        ...

    @property
    def repeats(self) -> bool:
        """An earlier execution began with the same range of the same batch, such as a task that Spark runs again."""
        ...

    @property
    def condition(self) -> str:
        """SQL that is true as long as the execution may insert; empty if the ledger is not in ClickHouse.

        An insert that evaluates it itself has no effect once it is superseded, even if its process was frozen between
        a check and the insert.
        """
        ...

    @property
    def query_id(self) -> str:
        """How the ids of this execution's inserts begin."""
        ...

    @property
    def partition_id(self) -> str:
        """How the ids of all inserts into the partition's rows begin, whichever execution sends them."""
        ...

    def check(self) -> None:
        """Raises LedgerConflict, with the owner, if another job or another execution has taken over."""
        ...
