"""How the SingleStore connector reports a transaction: after its document's samples, no recorded stream."""

from collections import Counter
from typing import ClassVar

from tests.model.events import Connector, Event, Wire
from tests.model.shapes import Row, TableShape
from tests.model.source import Transaction


class SingleStore(Connector):
    """``OBSERVE``: rows of the snapshot as creates, ``before`` always null, a delete with its key alone.

    Each database partition has offsets of its own; their digits may grow. Key updates are a delete and a create,
    without headers. Times are the connector's clock.
    """

    kind = "singlestore"
    schema_name = "singlestore"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("table", "string", False),
        ("txId", "string", False),
        ("partitionId", "int32", False),
        ("offsets", "array", False),
    ]

    def __init__(
        self,
        table: TableShape,
        name: str,
        features: Counter[str],
        *,
        metadata: bool = False,
        shards: int = 2,
        digits: int = 48,
        marked: bool = False,
    ) -> None:
        """``marked``: streamed events say ``snapshot: "true"`` too, as the document's samples do."""
        super().__init__(table, name, features, metadata=metadata)
        self.digits, self.marked = digits, marked
        self.offsets = [4096 * shard for shard in range(shards)]

    def snapshot(self, rows: list[Row], tick: int, ms: int) -> list[Event]:
        events = []
        for row in rows:
            event = self.change("c", self._source(ms, "true", row, tick), None, row, ms, self.next_unit())
            event.snapshot = "initial"
            events.append(event)
        return events

    def describe(self, tx: Transaction) -> list[Event]:
        mark = "true" if self.marked else "false"
        events: list[Event] = []
        for change in tx.changes:
            row, ms = change.after or change.before or {}, tx.commit_ms + 40
            source = self._source(ms, mark, row, tx.commit_tick)
            if self.moves(change) and change.before is not None and change.after is not None:
                halves = self.moved(source, change.before, change.after, ms, headers=False)
                halves[0].source = self._source(ms, mark, change.before, tx.commit_tick)
                halves[0].before = None
                events += halves
                continue
            op = {"insert": "c", "update": "u", "delete": "d"}[change.kind]
            event = self.change(op, source, change.before, change.after, ms, self.next_unit())
            event.before = None
            events.append(event)
        return events

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        return self._source(ms, snapshot, {}, tick)

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        self.offsets = [max(0, offset - drop) for offset in self.offsets]

    def transaction_id(self, event: Event) -> str:
        return str((event.source or {})["txId"])

    def _source(self, ms: int, snapshot: str, row: Row, tick: int) -> Wire:
        shard = sum(repr([row.get(name) for name in self.table.key]).encode()) % len(self.offsets)
        self.offsets[shard] += 16
        offsets: list[str | None] = [
            f"{3:016x}{0x46:016x}{offset:016x}".rjust(self.digits, "0") for offset in self.offsets
        ]
        if tick % 7 == 0 and len(offsets) > 1:
            offsets[(shard + 1) % len(offsets)] = None
        own: Wire = {
            "table": self.table.name,
            "txId": f"{'f' * 16}{tick:064x}",
            "partitionId": shard,
            "offsets": offsets,
        }
        return self.common(ms, snapshot, None) | own
