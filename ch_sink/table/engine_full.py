"""``system.tables.engine_full`` taken apart: engine, arguments, keys, TTL, settings; and what the sink makes of it.

Facts about the text: the engine with its arguments comes first, then PARTITION BY, PRIMARY KEY, ORDER BY,
SAMPLE BY, TTL, SETTINGS in the server's order. ``Null`` is written in backquotes; views have an empty text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ch_sink.errors import TableError
from ch_sink.table.model import Engine, Family
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import Kind, Token, closing, identifier, literal, split_commas, string_value, tokenize

_LOCAL = "Point clickhouse.table at a table of the ReplacingMergeTree family, or let `ch_sink init` make one."
_SUMS = (
    "it merges rows of one key by adding them up, so an update or a delete cannot replace what is stored",
    "Write into a ReplacingMergeTree table and feed this one from it by a materialized view.",
)
_VIEW = (
    "a view stores nothing",
    "Point clickhouse.table at the table that the view reads; or give a source table of this name a table of another "
    "one (clickhouse.table, or an exception under `tables:`).",
)
_REASONS = {
    **dict.fromkeys(("View", "LiveView", "WindowView"), _VIEW),
    "MaterializedView": (
        "rows inserted into a materialized view bypass its query and its source table",
        "Point clickhouse.table at its source table, or at its target table (TO …) itself.",
    ),
    "Buffer": (
        "it acknowledges rows that are only in memory, and drops deduplication tokens when it flushes",
        "Point clickhouse.table at the table behind the buffer.",
    ),
    "Null": (
        "it stores nothing, so rows could be neither replaced nor looked up",
        "Point clickhouse.table at the table that its materialized views fill.",
    ),
    "Kafka": ("it is a reader of a topic", "Point clickhouse.table at the table that holds the rows."),
    "Merge": ("it reads over several tables and stores nothing", "Point clickhouse.table at one of them."),
    "Alias": ("it is an alias of a table", "Point clickhouse.table at the table that it names."),
    "CoalescingMergeTree": (
        "an update to null leaves the old value there, and a row inserted again after a delete looks like an update",
        "Use a ReplacingMergeTree (`ch_sink init`).",
    ),
    **dict.fromkeys(("SummingMergeTree", "AggregatingMergeTree", "GraphiteMergeTree"), _SUMS),
}
"""Engines of which the reason or the next step is their own."""


def refusal(engine: str, table: str) -> TableError:
    """The error for an engine outside the served families: it names the engine, the reason and the remedy."""
    base = engine.removeprefix("Replicated").removeprefix("Shared")
    merges = base.endswith("MergeTree")
    other = (
        "how it merges rows is unknown to the sink" if merges else "it knows neither versions nor deduplication tokens"
    )
    reason, remedy = _REASONS.get(base, (other, _LOCAL))
    return TableError(f"{table} has the engine {engine}, which is not supported: {reason}", hint=remedy)


@dataclass(frozen=True, slots=True)
class EngineClause:
    """An engine clause, in parts. Texts are the server's own; empty means that the part is absent."""

    name: str
    arguments: tuple[str, ...] = ()
    partition_by: str = ""
    primary_key: str = ""
    order_by: str = ""
    sample_by: str = ""
    ttl: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def setting(self, name: str) -> str | None:
        """A setting's value, quotes removed; None if the table does not set it."""
        return next((value for key, value in self.settings if key == name), None)


@dataclass(frozen=True, slots=True)
class DistributedOver:
    """The local table behind a Distributed one. ``database`` is empty if the remote server's default holds."""

    cluster: str
    database: str
    table: str
    sharding_key: str = ""


_CLAUSES = {
    "PARTITION": "partition_by",
    "PRIMARY": "primary_key",
    "UNIQUE": "unique_key",
    "ORDER": "order_by",
    "SAMPLE": "sample_by",
    "TTL": "ttl",
    "SETTINGS": "settings",
    "COMMENT": "comment",
}
_SECOND_WORD = {"PARTITION": "BY", "PRIMARY": "KEY", "UNIQUE": "KEY", "ORDER": "BY", "SAMPLE": "BY"}


def parse_engine(engine: str, engine_full: str) -> EngineClause:
    """The parts of ``engine_full``; ``engine`` is ``system.tables.engine``, used where the text is empty (views).

    Raises TableError if the text cannot be read or names another engine.
    """
    tokens = tokenize(engine_full)
    if not tokens:
        return EngineClause(engine)
    name = tokens[0].value
    if name != engine:
        raise TableError(f"engine_full names {name!r}, the engine is {engine!r}: {engine_full!r}")
    place = 1
    arguments: list[str] = []
    if place < len(tokens) and tokens[place].is_symbol("("):
        end = closing(tokens, place)
        arguments = split_commas(engine_full[tokens[place].end : tokens[end].start])
        place = end + 1
    parts = _clauses(engine_full, tokens, place)
    if parts.pop("unique_key", ""):
        raise TableError(
            f"{name} with UNIQUE KEY is not supported: {engine_full!r}", hint="Use a table without UNIQUE KEY."
        )
    parts.pop("comment", "")
    settings = _settings(parts.pop("settings", ""))
    made = EngineClause(name, tuple(arguments), settings=settings, **parts)
    if name.endswith("MergeTree") and not made.order_by:
        raise TableError(
            f"{name} is in the deprecated form, with its keys among its arguments: {engine_full!r}",
            hint="Recreate the table with ORDER BY: `ch_sink init`.",
        )
    return made


_MOVES = (("TO", "VOLUME"), ("TO", "DISK"), ("RECOMPRESS", "CODEC"))
"""The continuation of a TTL element that removes no rows."""


def removing_ttl(ttl: str) -> str:
    """The elements of a table's TTL that remove rows: others move them to a disk, or compress them."""
    return ", ".join(element for element in split_commas(ttl) if not _moves(element))


def _moves(element: str) -> bool:
    words = [token.value.upper() if token.kind is Kind.NAME else "" for token in tokenize(element)]
    return any(pair in _MOVES for pair in pairwise(words))


def _clauses(text: str, tokens: list[Token], place: int) -> dict[str, str]:
    parts: dict[str, str] = {}
    current: str | None = None
    first: Token | None = None
    depth = 0
    while place < len(tokens):
        token = tokens[place]
        # A column may be called ttl or settings: a keyword can only follow a complete expression.
        can_begin = depth == 0 and (current is None or (first is not None and _ends_expression(tokens[place - 1])))
        word = _keyword(tokens, place) if can_begin else None
        if word is not None:
            if current is not None and first is not None:
                parts[current] = text[first.start : tokens[place - 1].end]
            current, first = _CLAUSES[word], None
            place += 2 if word in _SECOND_WORD else 1
            continue
        if current is None:
            raise TableError(f"cannot read the engine clause at {token.value!r}: {text!r}")
        depth += (token.value in ("(", "[", "{")) - (token.value in (")", "]", "}")) if token.kind is Kind.SYMBOL else 0
        first = first or token
        place += 1
    if current is not None and first is not None:
        parts[current] = text[first.start : tokens[-1].end]
    return parts


def _ends_expression(token: Token) -> bool:
    return token.kind is not Kind.SYMBOL or token.value in (")", "]", "}")


def _keyword(tokens: list[Token], place: int) -> str | None:
    token = tokens[place]
    word = token.value.upper()
    if token.kind is not Kind.NAME or word not in _CLAUSES:
        return None
    second = _SECOND_WORD.get(word)
    if second is None:
        return word
    return word if place + 1 < len(tokens) and tokens[place + 1].is_word(second) else None


def _settings(text: str) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for item in split_commas(text):
        tokens = tokenize(item)
        if len(tokens) < 3 or not tokens[1].is_symbol("="):
            raise TableError(f"cannot read the table setting {item!r}")
        value = tokens[2].value if len(tokens) == 3 else item[tokens[2].start : tokens[-1].end]
        pairs.append((tokens[0].value, value))
    return tuple(pairs)


def settings_sql(settings: Sequence[tuple[str, str]]) -> str:
    """The clause SETTINGS; empty without settings."""
    # The values are texts without quotes, and expressions such as ``disk(…)`` whole.
    values = (
        f"{name} = {value if value.replace('.', '', 1).isdigit() or value.endswith(')') else literal(value)}"
        for name, value in settings
    )
    return f"SETTINGS {', '.join(values)}" if settings else ""


def distributed_over(clause: EngineClause) -> DistributedOver | None:
    """The local table that a ``Distributed`` clause names; None for every other engine.

    Raises TableError if it is over a table function or lacks arguments.
    """
    if clause.name != "Distributed":
        return None
    names = [identifier(text) if (value := string_value(text)) is None else value for text in clause.arguments[:3]]
    if len(names) < 3 or None in names:
        raise TableError(
            f"Distributed({', '.join(clause.arguments)}) does not name one local table",
            hint="Point clickhouse.table at the local table, or at a Distributed table over a named one.",
        )
    return DistributedOver(names[0] or "", names[1] or "", names[2] or "", *clause.arguments[3:4])


def is_version_type(type_text: str) -> bool:
    """Whether ClickHouse takes a column of this type as a version: an integer, a float, a date or a time.

    Measured on 26.9: Nullable, Decimal, Enum, UUID, strings and addresses are refused (code 169).
    """
    tree = parse_type(type_text)
    if tree.nullable:
        return False
    name = tree.bare.name
    if name in ("Bool", "Date", "Date32", "DateTime", "DateTime64", "Time", "Time64", "BFloat16"):
        return True
    return name.lstrip("U").rstrip("0123456789") in ("Int", "Float") and name[-1].isdigit()


def to_engine(
    clause: EngineClause, columns: Sequence[Column], *, sign_column: str | None = None, table: str = "the table"
) -> Engine:
    """The merge engine that a clause means, its columns checked against the table's.

    ``sign_column`` names the sign of a ``ReplacingMergeTree(ver)`` if it is not called ``sign`` or ``_sign``.
    Collapsing and append tables get their ``_version`` (append tables also ``_sign``) by name, since their
    engines take none. Raises TableError for an engine that cannot be served, naming reason and remedy.
    """
    name = clause.name
    replicated, shared = name.startswith("Replicated"), name.startswith("Shared")
    base = name.removeprefix("Replicated") if replicated else name.removeprefix("Shared")
    try:
        family = Family(base)
    except ValueError:
        raise refusal(name, table) from None
    arguments = list(clause.arguments)
    if replicated or shared:
        for _ in range(2):
            if arguments and string_value(arguments[0]) is not None:
                arguments.pop(0)
    arguments = [text for text in arguments if text != "tuple()"]
    version = sign = is_deleted = None
    if family is Family.REPLACING:
        version, is_deleted = _columns(clause, arguments, 0, 2, table)
        if version is not None and is_deleted is None:
            signs = {c.name for c in columns if c.type == "Int8"}
            sign = sign_column or next((name for name in ("_sign", "sign") if name in signs), None)
    elif family is Family.COLLAPSING:
        (sign,) = _columns(clause, arguments, 1, 1, table)
        version = _version_by_name(columns)
    elif family is Family.VERSIONED_COLLAPSING:
        sign, version = _columns(clause, arguments, 2, 2, table)
    else:
        version = _version_by_name(columns)
        sign = "_sign" if any(c.name == "_sign" and c.type == "Int8" for c in columns) else None
    engine = Engine(family, name, version, sign, is_deleted, replicated, shared)
    _check_types(engine, columns, table)
    return engine


def _columns(clause: EngineClause, arguments: list[str], least: int, most: int, table: str) -> list[str | None]:
    names = [identifier(text) for text in arguments]
    if not least <= len(names) <= most or None in names:
        raise TableError(
            f"{table}: {clause.name}({', '.join(clause.arguments)}) is not a known form of this engine",
            hint="Compare engine_full in system.tables with ClickHouse's documentation.",
        )
    return [*names, *([None] * (most - len(names)))]


def _version_by_name(columns: Sequence[Column]) -> str | None:
    return next((c.name for c in columns if c.name == "_version" and c.insertable and is_version_type(c.type)), None)


def _check_types(engine: Engine, columns: Sequence[Column], table: str) -> None:
    types = {c.name: c.type for c in columns}
    for role, name, wanted in (
        ("version", engine.version_column, None),
        ("sign", engine.sign_column, "Int8"),
        ("is_deleted", engine.is_deleted_column, "UInt8"),
    ):
        if name is None:
            continue
        if name not in types:
            raise TableError(
                f"{table}: its {role} column {name!r} does not exist",
                hint=f"The table has: {', '.join(types)}. Correct sign_column, or the engine's arguments.",
            )
        fits = is_version_type(types[name]) if wanted is None else types[name] == wanted
        if not fits:
            need = wanted or "an integer, date or time type, not Nullable"
            raise TableError(
                f"{table}: its {role} column {name!r} is {types[name]}, and must be {need}",
                hint=f"Recreate the table with {name} {wanted or 'UInt128'}.",
            )
