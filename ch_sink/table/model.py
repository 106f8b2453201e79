"""The target table as detected: plain facts, no I/O."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.rollup import Rollup
from ch_sink.types.chtype import text_type
from ch_sink.types.column import WIDE_YEARS, Column, Years
from ch_sink.types.sql import columns_in, quote

SOURCE_TIME = "_source_time"
"""The column of a history that has the time of each change at its source."""


class Family(StrEnum):
    """Merge-engine families that the sink serves."""

    REPLACING = "ReplacingMergeTree"
    COLLAPSING = "CollapsingMergeTree"
    VERSIONED_COLLAPSING = "VersionedCollapsingMergeTree"
    MERGE_TREE = "MergeTree"

    @property
    def collapses(self) -> bool:
        """Whether a sign adds rows and takes them back."""
        return self in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)


@dataclass(frozen=True, slots=True)
class Engine:
    """The merge engine and the columns that its arguments name."""

    family: Family
    name: str
    """As the server writes it, e.g. ``ReplicatedReplacingMergeTree``."""
    version_column: str | None = None
    sign_column: str | None = None
    is_deleted_column: str | None = None
    replicated: bool = False
    shared: bool = False

    def __str__(self) -> str:
        """The family with the columns that are its arguments, whether replicated or not."""
        arguments: dict[Family, tuple[str | None, ...]] = {
            Family.REPLACING: (self.version_column, self.is_deleted_column),
            Family.COLLAPSING: (self.sign_column,),
            Family.VERSIONED_COLLAPSING: (self.sign_column, self.version_column),
        }
        columns = ", ".join(column for column in arguments.get(self.family, ()) if column)
        return f"{self.family.value}({columns})" if columns else self.family.value


_CLEANUPS = (
    "allow_experimental_replacing_merge_with_cleanup",
    "enable_replacing_merge_with_cleanup_for_min_age_to_force_merge",
)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The table into which rows go. For a ``Distributed`` table the engine and keys are those of its local table."""

    database: str
    name: str
    engine: Engine
    columns: tuple[Column, ...]
    sorting_key: tuple[str, ...] = ()
    """Expressions of ORDER BY, in order; empty for ``tuple()``."""
    partition_key: str = ""
    """Text of PARTITION BY, empty for none."""
    place_columns: frozenset[str] = frozenset()
    """Columns that occur in the sorting key, partition key, TTL expressions and sharding key."""
    computed_from: tuple[tuple[str, frozenset[str]], ...] = ()
    """Columns that the server may compute (MATERIALIZED, DEFAULT), each with the stored ones of its expression."""
    varying: frozenset[str] = frozenset()
    """Columns that the server fills by the clock or by chance if an insert does not state them."""
    dedup_window: int = 0
    """Effective window of insert deduplication (replicated or not), 0 when it is off."""
    distributed: bool = False
    cluster: str | None = None
    comment: str = ""
    uuid: str = field(default="", compare=False)
    """The server's, which a table that is created anew under the same name does not have; empty if it has none."""
    ttl: str = ""
    """Text of the table's TTL, empty for none."""
    sharding_key: str = ""
    """Sharding expression of a Distributed table, empty for none."""
    dedup_window_seconds: int = 0
    """How long a replicated table remembers tokens; 0 if no time limit holds."""
    settings: tuple[tuple[str, str], ...] = ()
    """The table's own SETTINGS, values as text."""
    defaults: tuple[tuple[str, Any], ...] = ()
    """Columns with a constant default, and its value as an Arrow scalar of the type that is inserted."""
    local: tuple[str, str] | None = None
    """Database and name of the local table behind a Distributed one."""
    years: Years = WIDE_YEARS
    left_out: frozenset[str] = frozenset()
    """Columns that the stream leaves to their defaults: the user excluded them, or their source has another name."""
    added: tuple[tuple[str, Any], ...] = ()
    """Columns with a constant of the user's, and its value as an Arrow scalar of the type that is inserted."""
    rollups: tuple[Rollup, ...] = ()
    """The rollups that the stream keeps beside the table. Only its coordinator and its tasks know them."""

    @property
    def cleanups(self) -> tuple[tuple[str, str], ...]:
        """Settings, with their values, by which merges may remove delete rows."""
        return tuple(
            (name, value)
            for name, value in self.settings
            if (name in _CLEANUPS and value in ("1", "true"))
            or (name == "clean_deleted_rows" and value.lower() == "always")
        )

    @property
    def qualified(self) -> str:
        return f"{quote(self.database)}.{quote(self.name)}"

    @property
    def system_columns(self) -> frozenset[str]:
        """Columns that the sink fills itself: version, sign, is_deleted, append mode's ``_op`` and time."""
        engine = self.engine
        named = {engine.version_column, engine.sign_column, engine.is_deleted_column}
        if engine.family is Family.MERGE_TREE:
            named |= {"_op", "_sign", "_version", SOURCE_TIME}
        elif engine.family is Family.COLLAPSING:
            named.add("_version")
        return frozenset(n for n in named if n is not None)

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """Insertable columns but the sink's own: what the views show, whichever of them a stream of the table fills."""
        own = self.system_columns
        return tuple(c for c in self.columns if c.insertable and c.name not in own)

    @property
    def shown_anew(self) -> tuple[Column, ...]:
        """Of these, the columns of which the server makes another value in each insert that states none."""
        return tuple(c for c in self.shown_columns if c.name in self.varying)

    @property
    def source_columns(self) -> tuple[Column, ...]:
        """Of these, the columns that the stream fills with the source's values, or with constants beside them."""
        return tuple(c for c in self.shown_columns if c.name not in self.left_out)

    @property
    def sorting_elements(self) -> tuple[str, ...]:
        """The sorting key as SQL: columns in quotes, expressions as they are."""
        return tuple(quote(e) if self.column(e) is not None else e for e in self.sorting_key)

    def finds_by_all(self, key: Collection[str]) -> bool:
        """Whether rows are found by all of their values: they have no key, as only a table that grows can serve."""
        return not key and self.engine.family is Family.MERGE_TREE

    def deciding_columns(self, key: Collection[str], places: frozenset[str] | None = None) -> frozenset[str]:
        """The columns outside the key whose values decide where the table keeps a row, or those of such columns.

        ``places``: columns of the expressions in question, by default `place_columns`.

        Events state the key: the server computes none of its columns, and it does not change with others.
        """
        inputs, stated = dict(self.computed_from), set(key)
        found, asked = set[str](), (self.place_columns if places is None else places) - stated
        while asked:
            found |= asked
            asked = frozenset[str]().union(*(inputs.get(name, ()) for name in asked)) - found - stated
        return frozenset(found)

    def moves_by(self, key: Collection[str]) -> frozenset[str]:
        """The columns outside the key by which the table is sorted or partitioned: a row leaves its place with them."""
        names = {c.name for c in self.columns}
        keys = (*self.sorting_key, self.partition_key)
        return self.deciding_columns(key, frozenset().union(*(columns_in(text or "tuple()", names) for text in keys)))

    def unstated_places(self, *keys: str) -> frozenset[str]:
        """The columns by which these key expressions place a row otherwise each time, whatever an insert states."""
        names = {c.name for c in self.columns} | {name for name, _ in self.computed_from} | self.varying
        named = frozenset().union(*(columns_in(key or "tuple()", names) for key in keys))
        stated = {c.name for c in self.source_columns} | self.system_columns
        return (self.deciding_columns((), named) & self.varying) - stated

    def added_key(self, chosen: ColumnPolicy) -> tuple[str, ...]:
        """Added columns that belong to the key: they tell topics apart, or the table is sorted by them."""
        return tuple(name for name, _ in chosen.add if name in chosen.source or name in self.sorting_key)

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def forgets_deletes(table: TargetTable) -> bool:
    """Whether a deleted row leaves no trace once its rows have collapsed, nor any that has no version."""
    collapses = table.engine.family.collapses
    return collapses or (table.engine.family is Family.REPLACING and table.engine.version_column is None)


def times(table: TargetTable) -> bool:
    """Whether the table's versions are times, of which the rows of several changes may have the same."""
    version = table.column(table.engine.version_column or "")
    return version is not None and version.type.startswith("DateTime")


def clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of different names that are one in lower case, each with the first of its kind."""
    lower: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = lower.setdefault(name.lower(), name)
        if other != name:
            yield other, name


def text_instead(table: str, column: Column) -> str:
    """The next step where only text can be stored; the column stays nullable, as the server demands."""
    return f"Make it text: ALTER TABLE {table} MODIFY COLUMN {quote(column.name)} {text_type(column.type)}."
