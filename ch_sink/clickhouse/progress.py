"""How far a range came, told by its task chunk by chunk: entries ``progress`` in the ledger's table.

Collapsing tables need it: a deleted row leaves nothing there that would show a second attempt what is done.
"""

from dataclasses import dataclass

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.ledger import ClickHouseLedger

__all__ = ["ClickHouseProgress"]


@dataclass(slots=True)
class ClickHouseProgress:
    """Progress of one stream's ranges."""

    client: Client
    database: str
    table: str
    stream: str

    def put(self, topic_id: str, partition: int, start: int, end: int, state: str) -> None:
        """Offsets [start, end) are done, and the state there is this one. Raises ClickHouseError."""
        self._ledger().put_progress(topic_id, partition, start, end, state)

    def reached(self, topic_id: str, partition: int, start: int) -> tuple[int, str] | None:
        """How far the range that begins there came, and the state; None where it never finished a chunk."""
        return self._ledger().progress_of(topic_id, partition, start)

    def cut(self, topic_id: str, partition: int, offset: int) -> None:
        """A chunk ends there for want of columns. Raises ClickHouseError."""
        self._ledger().put_cut(topic_id, partition, offset)

    def _ledger(self) -> ClickHouseLedger:
        return ClickHouseLedger(self.client, self.database, self.table, self.stream)
