"""What a generated table shall be: the choices of ``ch_sink init``."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ch_sink.errors import ConfigError
from ch_sink.table.model import Family
from ch_sink.types.column import TypeChoices
from ch_sink.types.sql import quote

__all__ = ["EngineChoice", "TableSpec"]


class EngineChoice(StrEnum):
    """Kinds of table that ``init`` makes."""

    REPLACING = "replacing"
    """``ReplacingMergeTree(_version, _is_deleted)``, the default."""
    SIGN_REPLACING = "sign-replacing"
    """``ReplacingMergeTree(_version)`` with a column ``_sign``."""
    COLLAPSING = "collapsing"
    """``CollapsingMergeTree(_sign)``"""
    VERSIONED_COLLAPSING = "versioned-collapsing"
    """``VersionedCollapsingMergeTree(_sign, _version)``"""
    APPEND = "append"
    """``MergeTree``: every change a row, with ``_op``, ``_sign``, ``_version``."""

    @staticmethod
    def parse(text: str) -> "EngineChoice":
        """The choice of this name, or of this engine's name (``CollapsingMergeTree``), in any letter case.

        Raises ConfigError, listing the names, for any other text.
        """
        word = text.strip().lower().replace("_", "-")
        engine = word.partition("(")[0].removeprefix("replicated").removeprefix("shared")
        for choice in EngineChoice:
            if word == choice.value or engine == choice.family.value.lower():
                return choice
        names = ", ".join(c.value for c in EngineChoice)
        raise ConfigError(f"engine {text!r} cannot be made by init", hint=f"Choose one of: {names}.")

    @property
    def family(self) -> Family:
        return {
            EngineChoice.REPLACING: Family.REPLACING,
            EngineChoice.SIGN_REPLACING: Family.REPLACING,
            EngineChoice.COLLAPSING: Family.COLLAPSING,
            EngineChoice.VERSIONED_COLLAPSING: Family.VERSIONED_COLLAPSING,
            EngineChoice.APPEND: Family.MERGE_TREE,
        }[self]

    @property
    def arguments(self) -> str:
        """The engine's column arguments."""
        return {
            EngineChoice.REPLACING: "_version, _is_deleted",
            EngineChoice.SIGN_REPLACING: "_version",
            EngineChoice.COLLAPSING: "_sign",
            EngineChoice.VERSIONED_COLLAPSING: "_sign, _version",
            EngineChoice.APPEND: "",
        }[self]

    @property
    def system_columns(self) -> tuple[tuple[str, str], ...]:
        """Name and type of the columns that the sink fills itself, in table order."""
        version, sign = ("_version", "UInt128"), ("_sign", "Int8")
        return {
            EngineChoice.REPLACING: (version, ("_is_deleted", "UInt8")),
            EngineChoice.SIGN_REPLACING: (version, sign),
            EngineChoice.COLLAPSING: (sign, version),
            EngineChoice.VERSIONED_COLLAPSING: (sign, version),
            EngineChoice.APPEND: (("_op", "LowCardinality(String)"), sign, version),
        }[self]

    def describe(self, column: str) -> str:
        """What a system column holds, as its comment says it."""
        if column == "_sign":
            return {
                EngineChoice.SIGN_REPLACING: "1 for a row, -1 for a deleted one",
                EngineChoice.APPEND: "1 for a row that a change adds, -1 for one that it removes",
            }.get(self, "1 for a row, -1 to cancel it")
        return _SYSTEM_COLUMNS[column]


_SYSTEM_COLUMNS = {
    "_version": "order of changes: the highest version of a key is its current row",
    "_is_deleted": "1 for a deleted row",
    "_op": "operation of the change: c insert, u update, d delete, r snapshot",
}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Everything that is chosen about a generated table. Expressions are ClickHouse SQL, taken as written."""

    database: str
    table: str
    engine: EngineChoice = EngineChoice.REPLACING
    order_by: tuple[str, ...] = ()
    """Elements of ORDER BY; empty for the key's columns. Must contain them."""
    partition_by: str = ""
    ttl: str = ""
    cluster: str | None = None
    """Makes every statement ``ON CLUSTER``."""
    replication: Literal["none", "path", "server"] = "none"
    """``path``: Replicated with ``{shard}`` and ``{replica}``; ``server``: Replicated by the server's defaults."""
    replica_path: str = "/clickhouse/tables/{shard}/{database}/{table}"
    key_columns: tuple[str, ...] = ()
    """Key columns where the topic's keys do not name them (primitive or no keys)."""
    allow_nullable_key: bool = False
    types: TypeChoices = field(default_factory=TypeChoices)
    codecs: bool = True
    dedup_window: int = 10_000
    """Inserts whose tokens the table remembers."""
    dedup_seconds: int = 604_800
    """How long a replicated table remembers them, in seconds."""
    view_suffix: str = "_current"
    row_policy_roles: tuple[str, ...] = ()
    """Users or roles that see no deleted rows in the table itself; ``all`` for everybody."""
    row_policy_except: tuple[str, ...] = ()
    """Users that a policy for ``all`` leaves out: at least the sink's own, which must see delete rows."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further table settings, values as SQL."""
    state_tables: dict[str, str] = field(default_factory=dict)
    """Names of the sink's own tables by template (``ledger``, ``dead_letters``, …)."""

    @property
    def qualified(self) -> str:
        return f"{quote(self.database)}.{quote(self.table)}"

    @property
    def view(self) -> str:
        """Qualified name of the current-state view."""
        return f"{quote(self.database)}.{quote(self.table + self.view_suffix)}"

    @property
    def on_cluster(self) -> str:
        return f" ON CLUSTER {quote(self.cluster)}" if self.cluster else ""
