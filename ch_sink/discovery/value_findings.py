"""Findings of ``check`` about columns: sampled values against the settings, columns that are computed, documents.

Every sampled value is converted as ``run`` would convert it. If some do not fit their column, the finding names the
setting (or the column comment) under which all of them do.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec

from ch_sink.clickhouse import Client
from ch_sink.decode.mongodb.columns import DocumentTable
from ch_sink.discovery.sample_rows import RawImages, decoded, row_events
from ch_sink.errors import REFILL_STORED, ChSinkError, ClickHouseError, TableError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.table.checks import Finding
from ch_sink.table.evolve import alter
from ch_sink.table.model import TargetTable
from ch_sink.types import OutOfRange, converter, ignores_comment, may_be_guess
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column, ValuePolicy, Years
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import nullable
from ch_sink.types.literals import tick_digits
from ch_sink.types.sql import columns_in, literal, quote

Literals = Mapping[str, Sequence[bytes]]
"""Column → JSON texts of its values, without nulls."""
_MOST = 200
"""Values kept of each column."""


def sampled_literals(
    chunks: Sequence[Records], policy: Policy, registry: SchemaRegistry | None = None
) -> dict[str, list[bytes]]:
    """The newest non-null values of each column."""
    found: dict[str, dict[bytes, None]] = {}
    payloads = [payload for _, payload in reversed(row_events(chunks, policy, registry)[0])]
    for event in decoded(payloads, RawImages):
        for name, raw in (event.after or {}).items():
            values = found.setdefault(name, {})
            if len(values) < _MOST and (text := bytes(raw)) != b"null":
                values[text] = None
    return {name: list(values) for name, values in found.items()}


def computed_findings(client: Client, table: TargetTable, stated: Collection[str]) -> Iterator[Finding]:
    """A finding for each such column; the server says what type its expression has.

    ``stated``: columns that the events state, for which the table does not compute a default.
    """
    nullable = {c.name for c in table.columns if parse_type(c.type).nullable}
    asked = [
        (column, sorted(nullable & columns_in(column.default_expression, {c.name for c in table.columns})))
        for column in table.columns
        if column.default_kind == "MATERIALIZED" or (column.default_kind == "DEFAULT" and column.name not in stated)
        if column.name not in nullable
    ]
    asked = [(column, inputs) for column, inputs in asked if inputs]
    if not asked:
        return
    listed = ", ".join(f"{column.default_expression} AS {quote(f'c{i}')}" for i, (column, _) in enumerate(asked))
    try:
        found = client.rows(
            f"DESCRIBE TABLE (SELECT {listed} FROM {table.qualified})", doing=f"inspect columns of {table.qualified}"
        )
    except ClickHouseError as error:
        yield Finding("warn", "computed columns", str(error), error.hint)
        return
    for (column, inputs), row in zip(asked, found, strict=True):
        if parse_type(str(row["type"])).nullable:
            names = ", ".join(inputs)
            yield Finding(
                "warn",
                "computed columns",
                f"{column.name} is computed from {names} as a {row['type']}: a NULL of it would stop the stream",
                f"Use ifNull in its expression ({column.default_expression}), or make {column.name} Nullable.",
            )


def document_findings(table: TargetTable, policy: Policy) -> Iterator[Finding]:
    """Findings about the columns of a table that takes documents."""
    try:
        documents = DocumentTable(table, policy)
    except TableError as error:
        yield Finding("fail", "documents", str(error), error.hint)
        return
    fields = ", ".join(f"{c.name} ← {'.'.join(c.path)}" for c in documents.columns if c.path)
    whole = documents.document
    if whole is None:
        name = policy.documents.column or "document"
        yield Finding(
            "warn",
            "documents",
            f"no column holds the whole document, only these fields: {fields}. An update that changes part of a "
            "value becomes a dead letter unless a text column holds that value (capture.mode: change_streams)",
            "\n".join(f"{text};" for text in alter(table, [f"ADD COLUMN IF NOT EXISTS {quote(name)} String"])),
        )
        return
    column = table.column(whole.name)
    yield Finding("ok", "documents", f"{whole.name} holds the whole document; {fields}")
    if column is not None and parse_type(column.type).bare.name == "JSON":
        yield Finding(
            "warn",
            "documents",
            f"{whole.name} is a JSON column: ClickHouse drops nulls and empty documents there, and shows text that "
            "looks like a date as a date. Partial updates are applied to this stored form",
            "A String column keeps documents exactly; JSONExtract… and CAST(document, 'JSON') query it.",
        )


_CHOICES = (
    ("decimal_handling", ("string", "precise", "double")),
    ("binary_handling", ("base64", "hex", "base64-url-safe", "bytes")),
    ("time_precision", ("connect", "microseconds", "nanoseconds", "isostring", "adaptive")),
)
"""Settings, each with its values in the order in which they are tried."""
_TICKS = {
    3: ("connect", "io.debezium.time.Timestamp"),
    6: ("microseconds", "io.debezium.time.MicroTimestamp"),
    9: ("nanoseconds", "io.debezium.time.NanoTimestamp"),
}
"""Sub-second digits of an integer time → the value of ``time_precision`` that states them, and the type's name."""
_PLAUSIBLE = (631_152_000, 4_102_444_800)
"""1990-01-01 to 2100-01-01 in seconds since 1970: the plausible dates of business data."""
_HEX_DIGITS = frozenset(b"0123456789abcdef")
_ENOUGH_HEX = 32
"""Base64 text of this length hardly ever consists of hexadecimal digits only."""


@dataclass(frozen=True, slots=True)
class _Advice:
    """A setting and the value to write."""

    key: str
    value: str


def value_findings(table: TargetTable, literals: Literals, policy: ValuePolicy) -> Iterator[Finding]:
    """One finding for each setting to change and for each column whose values do not fit. Never raises."""
    advised: dict[_Advice, list[str]] = {}
    refuted = {column.name for column in refuted_comments(table, literals, policy)}
    ticks, other_ticks = _tick_advice(table, literals, policy)
    settled = refuted | {column.name for column, _ in other_ticks}
    for column in table.source_columns:
        values = literals.get(column.name, ())
        if not values or column.name in settled:
            continue
        reason = _reason(column, values, policy, table.years)
        advice = ticks.get(column.name) or _hex_advice(column, values, policy)
        if advice is None and reason:
            advice = _advice(column, values, policy, table.years)
        if advice is not None:
            advised.setdefault(advice, []).append(f"{column.name} {column.type}, sampled value {_shown(values)}")
        elif reason:
            yield Finding(
                "warn",
                "values",
                f"{column.name} {column.type}: the sampled value {_shown(values)} does not fit and becomes a dead "
                f"letter: {reason}",
                "Change the column's type, or state the source's type in its comment (docs/types.md).",
            )
    for column, named in other_ticks:
        yield Finding(
            "fail",
            "values",
            f"{column.name} {column.type}: the sampled value {_shown(literals[column.name])} is not a plausible date "
            "in the unit in which this column is read",
            "\n".join((*(f"{t};" for t in alter(table, [_note(column, f"debezium: int64 {named}")])), REFILL_STORED)),
        )
    for advice, columns in advised.items():
        have = getattr(policy, advice.key)
        yield Finding(
            "fail",
            "values",
            f"{'; '.join(columns)}: not what a connector sends with {advice.key}: {have}",
            f"{advice.key}: {advice.value}\n{REFILL_STORED}",
        )
    for column in refuted_comments(table, literals, policy):
        yield Finding(
            "fail",
            "values",
            f"{column.name} {column.type}: its comment {column.comment!r} contradicts the sampled value "
            f"{_shown(literals[column.name])}, so every row becomes a dead letter",
            "\n".join(f"{text};" for text in alter(table, [without_note(column)])),
        )


def refuted_comments(table: TargetTable, literals: Literals, policy: ValuePolicy) -> list[Column]:
    """Columns whose comment is wrong: all sampled values fit without the type that it names, but not all with it.

    Only comments that may be guesses count: a bare ``debezium: string``, as early versions of ``init`` wrote it.
    """
    return [
        column
        for column in table.source_columns
        if (values := literals.get(column.name, ()))
        and _is_bare(column)
        and not ignores_comment(column, policy)
        and _reason(column, values, policy, table.years)
        and not _reason(replace(column, comment=""), values, policy, table.years)
    ]


def without_note(column: Column) -> str:
    """The ALTER action that removes the source's type from a column's comment and keeps the user's own text."""
    return _note(column, "")


def _note(column: Column, note: str) -> str:
    own_text = column.comment.rpartition("debezium: ")[0] if "debezium: " in column.comment else column.comment
    return f"COMMENT COLUMN {quote(column.name)} {literal(f'{own_text.rstrip()} {note}'.strip())}"


def _is_bare(column: Column) -> bool:
    noted = SourceType.from_comment(column.comment)
    return noted is not None and may_be_guess(noted)


def _reason(column: Column, values: Sequence[bytes], policy: ValuePolicy, years: Years) -> str:
    """Why some value does not fit the column; empty if all fit, or if the column's type is the problem."""
    try:
        made = converter(None, column, encoding="json", policy=policy, years=years)
        decoder = msgspec.json.Decoder(nullable(made.wire), float_hook=Decimal)
    except ChSinkError:
        return ""  # reported by the type checks
    for text in values:
        try:
            made.convert([decoder.decode(text)])
        except OutOfRange as error:
            if policy.out_of_range == "fail":
                return str(error)
        except (ChSinkError, msgspec.DecodeError, ValueError, TypeError, ArithmeticError) as error:
            return str(error)
    return ""


def _advice(column: Column, values: Sequence[bytes], policy: ValuePolicy, years: Years) -> _Advice | None:
    """The setting under which all values fit."""
    for key, choices in _CHOICES:
        for choice in choices:
            change: dict[str, Any] = {key: choice}
            if choice != getattr(policy, key) and not _reason(column, values, replace(policy, **change), years):
                return _Advice(key, choice)
    return None


def _hex_advice(column: Column, values: Sequence[bytes], policy: ValuePolicy) -> _Advice | None:
    """Advice for hexadecimal text in a binary column, which can be mistaken for base64."""
    noted = column.stated
    if noted is None or noted.kind != "bytes" or noted.name or policy.binary_handling not in ("bytes", "base64"):
        return None
    texts = [text.strip(b'"') for text in values]
    digits = sum(map(len, texts))
    if digits >= _ENOUGH_HEX and all(len(text) % 2 == 0 and _HEX_DIGITS.issuperset(text) for text in texts):
        return _Advice("binary_handling", "hex")
    return None


def _tick_advice(
    table: TargetTable, literals: Literals, policy: ValuePolicy
) -> tuple[dict[str, _Advice], list[tuple[Column, str]]]:
    """Columns whose integers are plausible dates, but in another unit than the one in which they are read.

    Returns one setting that corrects all of them if there is one, else each column with the type name of its unit.
    """
    wrong: dict[Column, set[int]] = {}
    right: list[set[int]] = []
    for column in table.source_columns:
        target = parse_type(column.type).bare
        noted = column.stated
        if target.name not in ("DateTime", "DateTime64") or (noted is not None and not ignores_comment(column, policy)):
            continue
        ticks = [int(text) for text in literals.get(column.name, ()) if text.lstrip(b"-").isdigit() and int(text)]
        units = {digits for digits in _TICKS if ticks and all(_is_plausible(tick, digits) for tick in ticks)}
        if units and tick_digits(target, policy.time_precision) not in units:
            wrong[column] = units
        elif units:
            right.append(units)
    common = set.intersection(*wrong.values(), *right) if wrong else set()
    if common:
        return {column.name: _Advice("time_precision", _TICKS[min(common)][0]) for column in wrong}, []
    return {}, [(column, _TICKS[min(units)][1]) for column, units in wrong.items()]


def _is_plausible(tick: int, digits: int) -> bool:
    return _PLAUSIBLE[0] <= tick // int(10**digits) < _PLAUSIBLE[1]


def _shown(values: Sequence[bytes]) -> str:
    text = values[0].decode(errors="replace")
    return text if len(text) <= 40 else f"{text[:40]}…"
