"""How the Oracle connector reports a transaction: after its source block's fields, no recorded stream is at hand."""

from collections import Counter
from typing import ClassVar

from tests.model.events import PLACEHOLDER, Connector, Event, Wire
from tests.model.shapes import Row, TableShape
from tests.model.source import Change, Transaction


class Oracle(Connector):
    """LogMiner (or XStream, ``xstream``): changes in the order of their SCNs when their transaction commits.

    ``lobs``: large columns are LOBs, which the log holds only where they change: the placeholder replaces the others
    in ``after``, null ones too, and for all in ``before``. Unique keys are checked at a statement's end.
    """

    kind = "oracle"
    schema_name = "oracle"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "string", True),
        ("scn", "string", True),
        ("commit_scn", "string", True),
        ("lcr_position", "string", True),
        ("rs_id", "string", True),
        ("ssn", "int64", True),
        ("redo_thread", "int32", True),
        ("user_name", "string", True),
    ]

    def __init__(
        self,
        table: TableShape,
        name: str,
        features: Counter[str],
        *,
        metadata: bool = False,
        base: int = 2_208_886,
        lobs: bool = True,
        xstream: bool = False,
    ) -> None:
        super().__init__(table, name, features, metadata=metadata)
        self.base, self.lobs, self.xstream = base, lobs, xstream
        self._last: Wire = {}

    def describe(self, tx: Transaction) -> list[Event]:
        events: list[Event] = []
        for change in tx.changes:
            source = self._streamed(tx, change)
            if change.before is not None and change.before == change.after:
                self.features["noop_update_told"] += 1
            if self.moves(change) and change.before is not None and change.after is not None:
                halves = self.moved(source, change.before, change.after, tx.commit_ms)
                halves[0].before = self._old(change.before)
                halves[1].after = self._new(change.before, change.after)
                if PLACEHOLDER in (halves[1].after or {}).values():
                    self.features["placeholder_in_create_half"] += 1
                events += halves
                continue
            op = {"insert": "c", "update": "u", "delete": "d"}[change.kind]
            event = self.change(op, source, change.before, change.after, tx.commit_ms, self.next_unit())
            event.before = self._old(change.before)
            if change.before is not None and change.after is not None:
                event.after = self._new(change.before, change.after)
                self.features["placeholder"] += PLACEHOLDER in event.after.values()
            events.append(event)
        return events

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        if tx is None:
            return self._source(ms, snapshot, {"scn": str(self.base + tick)})
        return self._source(ms, snapshot, self._last)

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        self.base = max(1, self.base - drop)

    def transaction_id(self, event: Event) -> str:
        return str((event.source or {})["txId"])

    def _streamed(self, tx: Transaction, change: Change) -> Wire:
        scn, commit = self.base + change.tick, self.base + tx.commit_tick
        own: Wire = {"txId": f"{tx.number:016x}", "scn": str(scn)}
        if self.xstream:
            place = f"{change.row:08x}{change.tick & 0xFFFFFFFF:08x}"
            own |= {"lcr_position": f"{commit:016x}{1:08x}{1:08x}{scn:016x}{place}02"}
        else:
            own |= {"commit_scn": str(commit), "rs_id": f"0x{scn >> 32:06x}.{change.tick:08x}.0010", "ssn": change.row}
            own |= {"redo_thread": 1, "user_name": "APP"}
        self._last = own
        return self._source(tx.commit_ms, "false", own)

    def _source(self, ms: int, snapshot: str, own: Wire) -> Wire:
        fields = dict.fromkeys(name for name, _, _ in self.own_fields)
        return self.common(ms, snapshot, None) | fields | {"schema": "APP", "table": self.table.name} | own

    def _old(self, row: Row | None) -> Wire | None:
        image = self.image(row)
        for column in self.table.columns if image is not None and self.lobs else ():
            if column.toastable:
                image[column.name] = PLACEHOLDER  # type: ignore[index]
        return image

    def _new(self, before: Row, after: Row) -> Wire:
        image = self.image(after) or {}
        for column in self.table.columns if self.lobs else ():
            if column.toastable and before[column.name] == after[column.name]:
                image[column.name] = PLACEHOLDER
        return image
