"""How MySQL and MariaDB connectors report a transaction."""

from collections import Counter
from typing import ClassVar

from tests.model.events import Connector, Event, Wire
from tests.model.shapes import TableShape
from tests.model.source import Change, Transaction


class MySql(Connector):
    """MySQL or MariaDB, ``binlog_row_image=FULL``: whole images, whole-second times of the statement.

    One event per statement and kind: its rows share ``pos`` and are numbered by ``row``. ``compressed`` gives all
    events of a transaction one ``pos``, with ``row`` starting again in each (compressed binlog transactions).
    """

    kind = "mysql"
    schema_name = "mysql"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("table", "string", True),
        ("server_id", "int64", False),
        ("gtid", "string", True),
        ("file", "string", False),
        ("pos", "int64", False),
        ("row", "int32", False),
        ("thread", "int64", True),
        ("query", "string", True),
    ]

    def __init__(
        self,
        table: TableShape,
        name: str,
        features: Counter[str],
        *,
        metadata: bool = False,
        flavour: str = "mysql",
        file: int = 1,
        pos: int = 4,
        gtids: bool = True,
        compressed: bool = False,
    ) -> None:
        super().__init__(table, name, features, metadata=metadata)
        self.kind = self.schema_name = flavour
        self.file, self.pos = file, pos
        self.gtids, self.compressed = gtids, compressed
        self.server_id = 22301
        self._gtid = 20

    def describe(self, tx: Transaction) -> list[Event]:
        self._gtid += 1
        self.pos += 42 + 38 * (tx.number % 3)
        events: list[Event] = []
        for statement in tx.statements():
            logged = [change for change in statement if change.kind == "truncate" or change.before != change.after]
            if not logged:
                self.features["unlogged_update"] += 1
                continue
            for row, change in enumerate(logged):
                events += self._tell(change, row)
            if not self.compressed:
                self.pos += 250 + 31 * len(logged)
        self.pos += 300
        return events

    def _tell(self, change: Change, row: int) -> list[Event]:
        ms = change.ms // 1000 * 1000
        source = self._source(ms, "false", row)
        if self.moves(change) and change.before is not None and change.after is not None:
            return self.moved(source, change.before, change.after, ms)
        op = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}[change.kind]
        return [self.change(op, source, change.before, change.after, ms, self.next_unit())]

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        if tx is None:
            block = self._source(ms // 1000 * 1000, snapshot, 0)
            return block | {"server_id": 0, "gtid": None}
        self.pos += 180
        block = self._source(ms, snapshot, 0)
        self.pos += 120
        return block

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        if self.file > 1 and drop % 2:
            self.file = max(1, self.file - drop)
        else:
            self.file = 1
            self.pos = min(self.pos, 4 + drop)
        self.server_id += 1

    def rotate(self) -> bool:
        self.file += 1
        self.pos = 4
        self.features["rotation"] += 1
        return True

    def transaction_id(self, event: Event) -> str:
        source = event.source or {}
        return source["gtid"] or f"file={source['file']},pos={source['pos']}"

    def _source(self, ms: int, snapshot: str, row: int) -> Wire:
        prefix = "0-22301-" if self.kind == "mariadb" else "3e11fa47-71ca-11e1-9e33-c80aa9429562:"
        own: Wire = {"table": self.table.name, "server_id": self.server_id}
        own |= {"gtid": f"{prefix}{self._gtid}" if self.gtids else None}
        own |= {"file": f"binlog.{self.file:06d}", "pos": self.pos, "row": row, "thread": None, "query": None}
        return self.common(ms, snapshot, None) | own
