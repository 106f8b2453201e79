"""The rows that readers of a table see, as SQL: each with the hash of its key, the hash of its values, and how often.

Two tables of one shape are compared by these hashes alone, so the same expressions serve every engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ch_sink.merge.resolved import version_column
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.views import partitions_apart
from ch_sink.types.chtype import parse_type, text_in_utc
from ch_sink.types.column import Column
from ch_sink.types.sql import OWN, literal, quote

KEY, ROW, TIMES, VERSION = f"{OWN}key", f"{OWN}row", f"{OWN}times", f"{OWN}version"
"""Columns of the queries: hash of the key, hash of the values, how often the row is there, its newest version."""

_SIGN, _SEEN = f"{OWN}sign", f"{OWN}seen"

_PLAIN = frozenset(
    "Int8 Int16 Int32 Int64 Int128 Int256 UInt8 UInt16 UInt32 UInt64 UInt128 UInt256 Float32 Float64 Decimal Date "
    "Date32 DateTime DateTime64 String FixedString UUID IPv4 IPv6 Bool Enum Enum8 Enum16".split()
)


def hashed(column: Column) -> str:
    """Expressions that together are equal exactly where the column's values are; hash functions accept all of them.

    A hash of NULL is NULL, so nulls have their own flag. Nested types are compared by their text.
    """
    kind, name = parse_type(column.type), quote(column.name)
    plain = kind.bare.name in _PLAIN
    text = text_in_utc(name, column.type)
    if not kind.nullable:
        return name if plain else text
    if kind.bare.name == "String":
        return f"isNull({name}), ifNull({name}, '')"
    text = f"hex({name})" if kind.bare.name == "FixedString" else text
    return f"isNull({name}), ifNull({text}, '')"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two tables, with the columns that are compared."""

    table: TargetTable
    key: tuple[str, ...]
    """Empty if rows have no key: then equal rows are counted."""
    columns: tuple[Column, ...]
    condition: str = ""
    """SQL over the table's columns; rows for which it is false are left out."""
    key_types: Mapping[str, str] = field(default_factory=dict)
    """Column of the key → the type as which it is compared, where that is not its own."""

    @property
    def key_hash(self) -> str:
        """The hash that identifies a row: of its key, or of all its values."""
        own = [column for column in self.table.columns if column.name in self.key] or self.columns
        by_name = {column.name: column for column in own}
        ordered = [by_name[name] for name in self.key] if self.key else list(self.columns)
        return f"sipHash128({', '.join(map(self._key_part, ordered))})"

    def _key_part(self, column: Column) -> str:
        kind = self.key_types.get(column.name)
        return hashed(column) if kind is None else f"accurateCastOrNull({quote(column.name)}, {literal(kind)})"

    @property
    def row_hash(self) -> str:
        """The hash of the compared values."""
        return f"sipHash64(1, {', '.join(hashed(column) for column in self.columns)})"

    @property
    def version_column(self) -> str | None:
        """The column that orders the versions of a row, if the table stores one."""
        return version_column(self.table)

    def live(self, select: Sequence[str] = (), among: str = "", condition: str = "") -> str:
        """The rows that readers see.

        ``select``: further expressions; ``among``: SQL of the key hashes wanted; ``condition``: a further one.

        Without a key also those with more deletes than inserts, `TIMES` below zero: the next insert would not show.
        """
        chosen = ", ".join(
            [f"{self.key_hash} AS {KEY}", f"{self.row_hash} AS {ROW}", f"{self._times} AS {TIMES}", *select]
        )
        wanted = [f"({text})" for text in (self.condition, condition) if text]
        wanted += [self.is_among(among)] if among else []
        rows, alive, settings = self._rows()
        where = " AND ".join([*alive, *wanted])
        return f"SELECT {chosen} FROM {rows}" + (f" WHERE {where}" if where else "") + settings

    def plain(self, columns: Sequence[str]) -> str:
        """The rows that readers see, with these columns only."""
        rows, alive, settings = self._rows()
        where = f" WHERE {' AND '.join(alive)}" if alive else ""
        return f"SELECT {', '.join(map(quote, columns)) or '1'} FROM {rows}{where}{settings}"

    def versions(self, among: str) -> str:
        """The newest version of each of these keys, as text of its type `in_utc`, deleted rows included."""
        column = self.table.column(self.version_column or "")
        newest = text_in_utc(f"max({quote(column.name)})", column.type) if column else "''"
        return (
            f"SELECT {self.key_hash} AS {KEY}, {newest} AS {VERSION} FROM {self.table.qualified} "
            f"WHERE {self.is_among(among)} GROUP BY {KEY}"
        )

    def unpaired(self) -> str:
        """A query of keys, as `KEY` in hex, whose signs do not sum up to 1 if readers see a row, else to 0.

        FINAL hides them: the next merge, or the next change of the key, may show another row or none. Of rows without a
        key those with more deletes than inserts: another row was not found by its delete. Empty for other engines.
        """
        engine = self.table.engine
        if self._is_multiset:
            return f"SELECT hex({KEY}) AS {KEY} FROM ({self.live()}) WHERE {TIMES} < 0"
        if not self.key or not engine.family.collapses:
            return ""
        rows, alive, settings = self._rows()
        wanted = [f"({self.condition})"] if self.condition else []
        shown = [
            f"SELECT {self.key_hash} AS {KEY}, {value} AS {_SIGN}, {seen} AS {_SEEN} FROM {source}"
            + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
            for value, seen, source, conditions in (
                (f"toInt64({quote(engine.sign_column or '')})", "toInt64(0)", self.table.qualified, wanted),
                ("toInt64(0)", "toInt64(1)", rows, [*alive, *wanted]),
            )
        ]
        return (
            f"SELECT hex({KEY}) AS {KEY} FROM ({shown[0]} UNION ALL ({shown[1]}{settings})) "
            f"GROUP BY {KEY} HAVING sum({_SIGN}) NOT IN (0, 1) OR sum({_SIGN}) != sum({_SEEN})"
        )

    def is_among(self, keys: str) -> str:
        """The condition on rows of these keys, which shards cannot look up: they are in a table of one server."""
        return f"{self.key_hash} {'GLOBAL IN' if self.table.distributed else 'IN'} ({keys})"

    @property
    def _times(self) -> str:
        return f"toInt64({TIMES}_stored)" if self._is_multiset else "toInt64(1)"

    @property
    def _is_multiset(self) -> bool:
        return self.table.engine.family is Family.MERGE_TREE and not self.key

    def _rows(self) -> tuple[str, list[str], str]:
        """The FROM clause, the conditions of a live row, and settings."""
        engine, name = self.table.engine, self.table.qualified
        if self._is_multiset:
            names = ", ".join(quote(c.name) for c in self.table.shown_columns)
            sign = quote(engine.sign_column or "_sign")
            inner = f"SELECT {names}, sum(toInt64({sign})) AS {TIMES}_stored FROM {name} GROUP BY {names}"
            return f"({inner} HAVING {TIMES}_stored != 0)", [], ""
        if engine.family is Family.MERGE_TREE:
            key = ", ".join(quote(part) for part in self.key)
            version = quote(self.version_column or "_version")
            newest = f"SELECT * FROM {name} ORDER BY {key}, {version} DESC LIMIT 1 BY {key}"
            return f"({newest})", [f"{quote(engine.sign_column or '_sign')} > 0"], ""
        alive = []
        if engine.is_deleted_column is not None:
            alive = [f"{quote(engine.is_deleted_column)} = 0"]
        elif engine.sign_column is not None:
            alive = [f"{quote(engine.sign_column)} > 0"]
        apart = partitions_apart(self.table)
        settings = " SETTINGS do_not_merge_across_partitions_select_final = 1" if apart else ""
        return f"{name} FINAL", alive, settings
