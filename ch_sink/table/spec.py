"""Specification of a generated table: choices of ``init``, and the columns that follow from the source's row type."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from ch_sink.errors import ConfigError, TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import SOURCE_TIME, Family
from ch_sink.types import clickhouse_type
from ch_sink.types.build import default_sql, default_text, without_expression
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import WIDE, TypeChoices
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import Kind, columns_in, key_expressions, literal, quote, tokenize


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
    """``MergeTree``: every change a row, with ``_op``, ``_sign``, ``_version``, ``_source_time``."""

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
        raise ConfigError(f"init cannot create engine {text!r}", hint=f"Choose one of: {names}.")

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
            EngineChoice.APPEND: (
                ("_op", "LowCardinality(String)"),
                sign,
                version,
                (SOURCE_TIME, "DateTime64(3, 'UTC')"),
            ),
        }[self]

    def describe(self, column: str) -> str:
        """The content of a system column, as its comment says it."""
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
    SOURCE_TIME: "time of the change at the source, or of the record in Kafka where the event states none",
}


DEDUP_SECONDS = 604_800
"""How long a replicated table of ``init`` remembers tokens."""


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
    key_columns: tuple[str, ...] = ()
    """Key columns where the topic's keys do not name them (primitive or no keys)."""
    allow_nullable_key: bool = False
    added_fields: tuple[str, ...] = ()
    """Fields that the connector adds to each event: the source has no such columns."""
    types: TypeChoices = field(default_factory=TypeChoices)
    dedup_window: int = 10_000
    """Inserts whose tokens the table remembers."""
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
        return f"{quote(self.database)}.{quote(f'{self.table}_current')}"

    @property
    def on_cluster(self) -> str:
        return f" ON CLUSTER {quote(self.cluster)}" if self.cluster else ""


def chosen_schema(schema: RowSchema, chosen: ColumnPolicy, key_columns: tuple[str, ...] = ()) -> RowSchema:
    """The row type of the table. ``key_columns``: the configured key, which names a key of a single value.

    Raises TableError if a column of the key is excluded or masked, or if two columns would have one name.
    """
    if chosen == ColumnPolicy():
        return schema
    masks = dict(chosen.mask)
    key = schema.key
    if len(key) == 1 and not key[0].name and len(key_columns) == 1:
        key = (Field(key_columns[0], key[0].type),)
    hidden = [f.name for f in key if f.name in masks or f.name in chosen.exclude]
    if hidden:
        raise TableError(
            f"columns {'masks' if hidden[0] in masks else 'excludes'} {hidden[0]!r}, which is a column of the topic's "
            "key: without it rows cannot be distinguished",
            hint=f"Remove {hidden[0]!r} from columns.",
        )
    own = [f.name for f in schema.fields]
    fields = [
        _masked(f, own, chosen) if f.name in masks else Field(chosen.target(f.name), without_expression(f.type, own))
        for f in schema.fields
        if f.name not in chosen.exclude
    ]
    added = {name: Field(name, added_type(text)) for name, text in chosen.add}
    if chosen.source:  # rows of other topics have other constants
        added = {name: Field(name, replace(f.type, default=None, has_default=False)) for name, f in added.items()}
    names = [f.name for f in fields]
    twice = next((name for name in names if name in added or names.count(name) > 1), None)
    if twice is not None:
        raise TableError(
            f"the source has a column {twice!r}, and columns fills {twice!r} with something else",
            hint=f"Name {twice!r} in columns.exclude, or give it another name in columns.rename.",
        )
    own_key = tuple(Field(chosen.target(f.name) if f.name else "", f.type) for f in key)
    first = tuple(added[name] for name in chosen.source if name in added) if own_key else ()
    return RowSchema((*fields, *added.values()), (*first, *own_key), schema.inferred)


def added_type(text: str) -> SourceType:
    """The type of a constant that is written as SQL; text for anything but a plain number or a truth value.

    The constant is the default, for rows that were stored without the column; not that of any other expression.
    """
    found, plain = text.strip(), SourceType("string", optional=False)
    try:
        tokens = tokenize(found.removeprefix("-"))
    except TableError:
        tokens = []
    if len(tokens) != 1:
        return plain
    [token] = tokens
    value: object = None
    if token.kind is Kind.NUMBER:
        whole = not set(token.value) & set(".eExX")
        plain = replace(plain, kind="int64" if whole else "float64")
        with suppress(ValueError):  # SQL writes numbers in more ways than Python reads
            value = int(found) if whole else float(found)
    elif token.is_word("TRUE", "FALSE"):
        plain, value = replace(plain, kind="boolean"), token.is_word("TRUE")
    elif token.kind is Kind.STRING and found[:1] != "-":
        value = token.value
    return plain if value is None else replace(plain, default=value, has_default=True)


def _masked(field: Field, columns: Sequence[str], chosen: ColumnPolicy) -> Field:
    source = field.type
    text = default_text(source, columns)
    kind = SourceType("string", optional=source.optional)
    if text is not None:
        masked = chosen.masked(field.name, text)
        kind = replace(kind, default=masked, has_default=True, default_is=source.default_is)
    elif source.default is not None:
        # A number, which does not become the DEFAULT of a column of text.
        kind = replace(kind, default=0, has_default=True, default_is="unstated")
    # A column of masks is not made wide, whatever the values are.
    own = replace(source, parameters=tuple(p for p in source.parameters if p != WIDE))
    return Field(chosen.target(field.name), kind, own)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """A column to create. Clauses with empty text are left out."""

    name: str
    type: str
    default: str = ""
    codec: str = ""
    comment: str = ""
    note: str = ""
    """The source type that the events declare, for the sink's own table of column types."""
    system: bool = False

    @property
    def sql(self) -> str:
        """The column as CREATE TABLE and ADD COLUMN take it."""
        parts = [quote(self.name), self.type]
        parts += [f"DEFAULT {self.default}"] if self.default else []
        parts += [f"COMMENT {literal(self.comment)}"] if self.comment else []
        parts += [f"CODEC({self.codec})"] if self.codec else []
        return " ".join(parts)


def key_names(schema: RowSchema, spec: TableSpec) -> tuple[str, ...]:
    """The key's columns, empty for a topic without key. Raises TableError if they cannot be named."""
    if schema.key:
        names = tuple(f.name for f in schema.key)
        if names == ("",):  # a primitive key has no name
            if len(spec.key_columns) != 1:
                raise TableError(
                    f"{spec.qualified}: the topic's keys are single values without a name",
                    hint="Name their column: key_columns: [id].",
                ).settled_by("key_columns: [id]")
            names = spec.key_columns
    else:
        names = spec.key_columns
    known = {f.name for f in schema.fields} | {f.name for f in schema.key}
    for name in names:
        if name not in known and not schema.key:
            raise TableError(
                f"{spec.qualified}: key column {name!r} is not a column of the source",
                hint=f"Choose key_columns from: {', '.join(sorted(known))}.",
            )
    return names


def sorting_key(schema: RowSchema, spec: TableSpec) -> tuple[str, ...]:
    """The elements of ORDER BY as SQL.

    Raises TableError if they lack a key column (the engine would merge different rows), and for a merging
    engine without a key.
    """
    key = key_names(schema, spec)
    append = spec.engine is EngineChoice.APPEND
    if not key and not append:
        raise TableError(
            f"{spec.qualified}: the topic has no keys, and {spec.engine.family.value} would merge equal rows into one",
            hint="Set engine: append, or name the columns that identify a row with key_columns.",
        ).settled_by("engine: append")
    if not spec.order_by:
        return (*(quote(name) for name in key), *(("`_version`",) if append else ()))
    missing = [name for name in key if name not in key_expressions(", ".join(spec.order_by))]
    if missing and not append:
        raise TableError(
            f"{spec.qualified}: ORDER BY ({', '.join(spec.order_by)}) lacks the key column {missing[0]!r}, "
            "so the engine would merge different rows",
            hint=f"Add {', '.join(missing)} to order_by.",
        )
    return spec.order_by


def plan_columns(schema: RowSchema, spec: TableSpec) -> tuple[ColumnPlan, ...]:
    """The source's columns in its order, then the system columns.

    Raises TableError for a source column named like a system column, and for a nullable key or place column
    unless ``allow_nullable_key``.
    """
    key = key_names(schema, spec)
    fields = _fields(schema, key)
    names = [f.name for f in fields]
    order = sorting_key(schema, spec)
    place = columns_in(", ".join((*order, spec.partition_by or "tuple()")), names)
    for name, _ in spec.engine.system_columns:
        if name in names:
            raise TableError(
                f"{spec.qualified}: the source has a column {name!r}, which this engine reserves",
                hint="Create the table by hand, with other names in the engine's arguments.",
            )
    first = key_expressions(order[0])[0] if order else ""
    columns = [_column(field, spec, field.name in key, field.name in place, first, names) for field in fields]
    # A key's column notes whether the row's may be null: later events are compared with that.
    in_row = {f.name: f.type.to_note() for f in schema.fields if f.name in key and f.type.optional}
    columns = [replace(c, note=in_row.get(c.name, c.note)) for c in columns]
    takes_back = spec.engine.family.collapses or not key
    if takes_back and (json := [c.name for c in columns if parse_type(c.type).holds("JSON")]):
        raise TableError(
            f"{spec.qualified}: {json[0]!r} would be a JSON column, which may give back another value than was stored "
            "(10 for 10.0): no −1 would take its row back",
            hint="Leave init.json_type, init.json_columns and init.document_type at String for this table.",
        )
    if schema.inferred:
        columns = [replace(column, note="") for column in columns]
    return (*columns, *system_plans(spec))


def system_plans(spec: TableSpec) -> list[ColumnPlan]:
    """The columns that the sink fills itself."""
    return [
        ColumnPlan(
            name,
            kind,
            codec=_codec(kind, leading=False) or ("ZSTD(1)" if kind == "UInt128" else ""),
            comment=spec.engine.describe(name),
            system=True,
        )
        for name, kind in spec.engine.system_columns
    ]


def _fields(schema: RowSchema, key: tuple[str, ...]) -> list[Field]:
    """Row fields, key columns typed as in the key; columns that only the key has come first."""
    in_key = dict(zip(key, (f.type for f in schema.key), strict=False))
    only_key = [Field(name, kind) for name, kind in in_key.items() if schema.field(name) is None]
    rest = [
        Field(f.name, replace(f.type, optional=in_key[f.name].optional) if f.name in in_key else f.type)
        for f in schema.fields
    ]
    return only_key + rest


def _column(
    field: Field, spec: TableSpec, in_key: bool, in_place: bool, first: str, names: Sequence[str]
) -> ColumnPlan:
    if (in_key or in_place) and field.type.optional and not spec.allow_nullable_key:
        role = "key" if in_key else "ORDER BY or PARTITION BY"
        raise TableError(
            f"{spec.qualified}: the {role} column {field.name!r} can be null in the source",
            hint="Declare it NOT NULL at the source, leave it out, or accept it with init.allow_nullable_key "
            "(ClickHouse then sorts nulls as one value).",
        ).settled_by("init: {allow_nullable_key: true}")
    kind = clickhouse_type(field.type, spec.types, key=in_key and not field.type.optional, column=field.name)
    default = "" if in_key else default_sql(field.type, kind, names, spec.types.years) or ""
    return ColumnPlan(field.name, kind, default, _codec(kind, leading=field.name == first), note=field.type.to_note())


def _codec(kind: str, *, leading: bool) -> str:
    """Codecs that pay off. Measured on a million rows sorted by key: a leading Int64 4.0 → 0.04 MB with Delta and LZ4,
    a DateTime64 in key order 3.4 → 0.08 MB with Delta and ZSTD (in random order 6.9 → 6.4).
    """
    tree = parse_type(kind)
    if tree.name == "LowCardinality":
        return ""
    if tree.bare.name in ("DateTime", "DateTime64", "Time64"):
        return "Delta, ZSTD(1)"
    return "Delta, LZ4" if leading and tree.bare.name in ("Int32", "UInt32", "Int64", "UInt64") else ""
