"""The source tables the model knows, and the target layouts they may be stored in."""

from dataclasses import dataclass
from datetime import date, timedelta

Value = int | str | date | None
Row = dict[str, Value]
Key = tuple[Value, ...]

EPOCH = date(1970, 1, 1)
TOASTED = 32
"""Texts of at least this many characters count as stored out of line (two kilobytes in a real PostgreSQL)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One source column; ``connect`` is the Kafka Connect type, ``semantic`` the name of the Debezium type."""

    name: str
    connect: str
    nullable: bool
    clickhouse: str
    semantic: str | None = None
    toastable: bool = False

    def encode(self, value: Value) -> int | str | None:
        """The value as the JSON converter writes it."""
        if isinstance(value, date):
            return (value - EPOCH).days
        return value

    def decode(self, literal: int | str | None) -> Value:
        if literal is not None and self.semantic == "io.debezium.time.Date":
            return EPOCH + timedelta(days=int(literal))
        return literal

    @property
    def filler(self) -> int | str | None:
        """What PostgreSQL connectors put where the identity has no value."""
        if self.nullable:
            return None
        return "" if self.connect == "string" else 0

    @property
    def schema(self) -> dict[str, object]:
        """The field's entry in the JSON schema envelope."""
        entry: dict[str, object] = {"type": self.connect, "optional": self.nullable}
        if self.semantic is not None:
            entry |= {"name": self.semantic, "version": 1}
        return entry | {"field": self.name}


@dataclass(frozen=True, slots=True)
class TableShape:
    """A source table: its columns in order and its primary key (empty: none)."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def canonical(self, row: Row) -> Key:
        """All values in column order: what two equal rows share."""
        return tuple(row[column.name] for column in self.columns)


@dataclass(frozen=True, slots=True)
class Layout:
    """A source table and where its rows go: the target's ORDER BY and PARTITION BY (ClickHouse expressions)."""

    name: str
    table: TableShape
    order_by: tuple[str, ...]
    partition_by: str | None = None

    @property
    def place(self) -> tuple[str, ...]:
        """Columns outside the key that decide where a row lies."""
        outside = [name for name in self.order_by if name not in self.table.key]
        partition = self.partition_by or ""
        outside += [c.name for c in self.table.columns if c.name in partition and c.name not in self.table.key]
        return tuple(dict.fromkeys(outside))

    @property
    def columns_sql(self) -> str:
        """The source columns as ClickHouse column definitions, to be followed by the engine's own columns."""
        return ", ".join(f"`{column.name}` {column.clickhouse}" for column in self.table.columns)


_BODY = (
    Column("n", "int32", True, "Nullable(Int32)"),
    Column("tag", "string", True, "Nullable(String)"),
    Column("big", "string", True, "Nullable(String)", toastable=True),
    Column("place", "int32", False, "Int32"),
    Column("day", "int32", False, "Date32", semantic="io.debezium.time.Date"),
)
_ID = Column("id", "int64", False, "Int64")
_K = Column("k", "int32", False, "Int32")
_S = Column("s", "string", False, "String")

SHAPES = {
    "single": TableShape("single", (_ID, *_BODY), ("id",)),
    "composite": TableShape("composite", (_ID, _K, *_BODY), ("id", "k")),
    "text": TableShape("text", (_S, _K, *_BODY), ("s", "k")),
    "nokey": TableShape(
        "nokey",
        (Column("a", "int32", True, "Nullable(Int32)"), *_BODY[1:3], _BODY[4]),
        (),
    ),
}

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("key", SHAPES["single"], ("id",)),
        Layout("key_month", SHAPES["single"], ("id",), "toYYYYMM(day)"),
        Layout("key_place", SHAPES["single"], ("id", "place")),
        Layout("composite", SHAPES["composite"], ("id", "k")),
        Layout("composite_by_k", SHAPES["composite"], ("id", "k"), "k"),
        Layout("composite_wide", SHAPES["composite"], ("place", "k", "id"), "toYYYYMM(day)"),
        Layout("text", SHAPES["text"], ("k", "s")),
        Layout("text_wide", SHAPES["text"], ("s", "place", "k"), "place % 2"),
        Layout("nokey", SHAPES["nokey"], ()),
        Layout("nokey_month", SHAPES["nokey"], ("day",), "toYYYYMM(day)"),
    )
}
