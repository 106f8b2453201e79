"""Inputs of a coordinator: its stream's settings, and the ports that only it uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Origins, Policy
from ch_sink.model.values import TopicState
from ch_sink.ports import Fence, Ledger, Pending, Terms
from ch_sink.stream.error_limits import ErrorLimits
from ch_sink.table.model import TargetTable


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The part of a stream's configuration that the coordinator needs."""

    name: str
    topic: str
    policy: Policy
    chunk_offsets: int = 50_000
    chunk_bytes: int = 64 << 20
    start: str = "earliest"
    """The place where a stream begins whose topic is new to the ledger."""
    on_data_loss: Literal["fail", "continue"] = "fail"
    errors: ErrorLimits = field(default_factory=ErrorLimits)
    source_table: str = ""
    """The only source table whose records are taken, of a topic with several; empty for all."""
    ends_vary: bool = False
    """A range that was begun may be read again with another end, as the batches of a DataFrame say."""

    def terms(self, table: str, types: Origins) -> Terms:
        """Under which rows are stored. ``table``: its UUID; ``types``: see `ch_sink.stream.claims.types_of`."""
        return Terms(self.policy.origins(), self.source_table, table, self.policy.readings(), types)


class TableAdmin(Protocol):
    """Detects and alters one target table. Every method raises ClickHouseError."""

    def detect(self) -> TargetTable:
        """The table as it is now. Raises TableError."""
        ...

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """Add or widen the columns and recreate the current-state view; returns the table after that."""
        ...

    def truncate(
        self, table: TargetTable, version: int, version_column: str | None, supersede: Callable[[], Sequence[Fence]]
    ) -> None:
        """Delete the rows whose version is below this one.

        Args:
            supersede: begins an execution of every partition; called where a repeat would count a row twice.
        """
        ...

    def fill_rollups(
        self, table: TargetTable, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool, last: str = ""
    ) -> None:
        """Compute the table's rollups from it: those of another definition than the table's, or all of them.

        Args:
            supersede: begins an execution of every partition, so that no other insert takes effect from then on. Called
                before anything is computed.
            doubtful: all of them.
            last: also those that the job of this run has not left with `keep_rollups`; empty for no such condition.
        """
        ...

    def keep_rollups(self, table: TargetTable, run: str) -> None:
        """Note beside the table's rollups that the job of this run leaves them as the table is."""
        ...

    def highest_version(self, table: TargetTable) -> int:
        """The highest version of the stream's own rows, −1 if there are none, 0 if the table has no versions."""
        ...

    def has_rows(self, table: TargetTable, *, of_any: bool = False) -> bool:
        """Whether the table has rows of the stream that it may not know of; ``of_any``: or rows of other streams."""
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
        """The known offsets committed last. Never raises."""
        ...

    def before_commit(self, topic: str, partitions: Sequence[int], notice: Callable[[dict[int, int]], None]) -> None:
        """Before the next commit, ``notice`` receives the offsets of the last one, perhaps in another thread."""
        ...


class NoGroup:
    """No consumer group: of a shadow table, or of records whose reader keeps its offsets itself."""

    def commit(self, topic: str, ends: Mapping[int, int]) -> None:
        del topic, ends

    def last_committed(self, topic: str, partitions: object) -> dict[int, int]:
        del topic, partitions
        return {}

    def before_commit(self, topic: str, partitions: object, notice: object) -> None:
        del topic, partitions, notice


@dataclass(frozen=True, slots=True)
class StreamPorts:
    """The external systems of one stream, as its coordinator uses them."""

    ledger: Ledger
    table: TableAdmin
    topics: Topics
    pending: Pending
    group: GroupOffsets
    dead_letters: Callable[[], int] = lambda: 0
    """How many of the stream's dead letters are neither applied nor dropped. Raises ClickHouseError."""
