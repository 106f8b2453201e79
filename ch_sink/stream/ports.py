"""What the coordinator needs from external systems, besides the ports that the tasks use as well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ch_sink.model.change import UnknownColumn
from ch_sink.model.values import TopicState
from ch_sink.ports import Ledger, Pending
from ch_sink.table.model import TargetTable

__all__ = ["GroupOffsets", "StreamPorts", "TableAdmin", "Topics"]


class TableAdmin(Protocol):
    """Detects and alters one target table. Every method raises ClickHouseError."""

    def detect(self) -> TargetTable:
        """The table as it is now. Raises TableError."""
        ...

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """Add or widen the columns and recreate the current-state view; returns the table after that."""
        ...

    def truncate(self, table: TargetTable, version: int, version_column: str | None) -> None:
        """Delete the rows whose version is below this one."""
        ...

    def highest_version(self, table: TargetTable) -> int:
        """The highest version of the stream's own rows, −1 if there are none, 0 if the table stores none."""
        ...


class Topics(Protocol):
    """Facts about topics."""

    def state(self, topic: str) -> TopicState:
        """Id, partitions and watermarks. Raises KafkaError."""
        ...


class GroupOffsets(Protocol):
    """The consumer group of a stream; lag tools read its offsets, the sink takes them as a witness only."""

    def commit(self, topic: str, ends: Mapping[int, int]) -> None:
        """Commit the next offset of each partition, now or soon. Never raises."""
        ...

    def last_committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets that were committed last, as far as they are known. Never raises."""
        ...

    def before_commit(self, topic: str, partitions: Sequence[int], notice: Callable[[dict[int, int]], None]) -> None:
        """Before the next commit, ``notice`` receives the offsets of the last one, perhaps in another thread."""
        ...


@dataclass(frozen=True, slots=True)
class StreamPorts:
    """The external systems of one stream, as its coordinator uses them."""

    ledger: Ledger
    table: TableAdmin
    topics: Topics
    pending: Pending
    group: GroupOffsets
    dead_letters: Callable[[str], int] = lambda _: 0
    """Topic id → how many of its dead letters are neither applied nor dropped. Raises ClickHouseError."""
