"""Columns of ClickHouse tables: which type ``init`` gives a source type, and whether a type holds all its values.

Also what the user decides about values.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS, integer_bounds
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.connect import SourceType, propagated_type


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``type`` is ClickHouse's text of it."""

    name: str
    type: str
    default_kind: str = ""
    """Empty, DEFAULT, MATERIALIZED or ALIAS; EPHEMERAL ones are refused."""
    default_expression: str = ""
    comment: str = ""
    note: str = ""
    """The source type that a schema of the events declared, from the sink's own table; empty if none is known."""

    @property
    def stated(self) -> SourceType | None:
        """The source type that the comment states, else the note; None if neither does."""
        return SourceType.from_comment(self.comment) or SourceType.from_comment(f"debezium: {self.note}")

    @property
    def insertable(self) -> bool:
        return self.default_kind not in ("MATERIALIZED", "ALIAS")


@dataclass(frozen=True, slots=True)
class Years:
    """First and last year that the server holds in Date32 and in DateTime64. Beyond them it shows other values.

    Year 0 is 1 BC. Engine 26.9 holds 0 to 9999 in both, servers before 1900 to 2299, some of them in Date32 only.
    """

    date: tuple[int, int] = (0, 9999)
    time: tuple[int, int] = (0, 9999)


WIDE_YEARS = Years()
PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class ValuePolicy:
    """Policy for reading and converting values. Field names equal the keys of the YAML file."""

    out_of_range: Literal["fail", "clamp", "null", "exact"] = "fail"
    """Policy for a value that its column cannot hold. ``fail`` makes the record a dead letter, and so does
    ``exact``, which holds for keys, also where the column would hold a part of the value only."""
    decimal_handling: Literal["precise", "double", "string"] = "precise"
    """The connector's ``decimal.handling.mode``, for events that do not declare their types."""
    binary_handling: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    """The connector's ``binary.handling.mode``, likewise."""
    time_precision: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    """The connector's ``time.precision.mode``, likewise."""
    placeholder: str = PLACEHOLDER
    """The connector's ``unavailable.value.placeholder``."""


_PARTED = ("Array", "Map", "Tuple", "Nested", "Dynamic", "Variant")
"""Types whose parts decide, or that hold any null."""


def held_as_null(policy: ValuePolicy, part: ChType) -> ValuePolicy:
    """The policy for a column, or a part of one: if it cannot be null, it would store its default for ``null``."""
    if policy.out_of_range != "null" or part.nullable or part.name in _PARTED:
        return policy
    return replace(policy, out_of_range="fail")


WIDE = ("ch_sink.wide", "true")
"""Schema parameter of a temporal column whose sampled values go beyond Date32 and DateTime64."""
DIGITS = "ch_sink.digits"
"""Schema parameter of an ISO date-time column: sub-second digits of its sampled values, where six are too few."""
DOCUMENT = ("ch_sink.document", "true")
"""Schema parameter of the column that holds a whole document."""
_CONNECT = "org.apache.kafka.connect.data."
_TEMPORAL = {
    "io.debezium.time.Date": "Date32",
    "io.debezium.time.IsoDate": "Date32",
    _CONNECT + "Date": "Date32",
    "io.debezium.time.Timestamp": "DateTime64(3, 'UTC')",
    _CONNECT + "Timestamp": "DateTime64(3, 'UTC')",
    "io.debezium.time.MicroTimestamp": "DateTime64(6, 'UTC')",
    "io.debezium.time.NanoTimestamp": "DateTime64(9, 'UTC')",
}
ISO = ("io.debezium.time.ZonedTimestamp", "io.debezium.time.IsoTimestamp")
"""Date-times sent as text, of any precision."""
_LABELS = ("io.debezium.data.Enum", "io.debezium.data.EnumSet")
_POINT = "io.debezium.data.geometry.Point"
_JSON = "io.debezium.data.Json"
JsonType = Literal["String", "JSON"]


@dataclass(frozen=True, slots=True)
class TypeChoices:
    """Choices among column types that all hold the source's values."""

    low_cardinality: bool = True
    """``LowCardinality`` for labels (ENUM, SET)."""
    arrays: Literal["nullable", "empty_for_null"] = "nullable"
    """Columns for arrays and maps that can be null: a ``Nullable(Tuple(items …))``, or the bare type, which stores null
    as empty."""
    json_type: JsonType = "String"
    """Columns for the source's JSON."""
    json_columns: tuple[tuple[str, JsonType], ...] = ()
    """Columns whose type differs from ``json_type``."""
    document_type: JsonType = "String"
    """The column that holds whole documents of MongoDB."""
    nullable_tuple: bool = True
    """Whether the server has ``Nullable(Tuple(…))``, which keeps null arrays and empty ones apart. Without it they
    become JSON text."""
    years: Years = WIDE_YEARS
    """The server's range of dates."""

    def json_of(self, column: str) -> JsonType:
        """The type of a column for JSON."""
        return dict(self.json_columns).get(column, self.json_type)


_DEFAULT = TypeChoices()
_KINDS = {
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "float32": "Float32",
    "float64": "Float64",
    "boolean": "Bool",
    "string": "String",
    "bytes": "String",
}


def clickhouse_type(
    source: SourceType, choices: TypeChoices | None = None, *, key: bool = False, column: str = ""
) -> str:
    """The column type that ``init`` creates: Nullable if the source is optional, never for ``key``.

    ``column`` is the column's name, for choices that differ by column.
    """
    choices = choices or _DEFAULT
    if DOCUMENT in source.parameters:
        return choices.document_type
    if source.name == _JSON and not key and choices.json_of(column) == "JSON":
        return "Nullable(JSON)" if source.optional else "JSON"
    base = _base(source, choices.nullable_tuple)
    labels = choices.low_cardinality and source.name in _LABELS
    if key or not source.optional:
        return f"LowCardinality({base})" if labels and not key else base
    if base.startswith(("Array(", "Map(")):
        if choices.arrays == "empty_for_null":
            return base
        return f"Nullable(Tuple(items {base}))" if choices.nullable_tuple else "Nullable(String)"
    if base == "Point" and not choices.nullable_tuple:
        return "Nullable(String)"
    return f"LowCardinality(Nullable({base}))" if labels else f"Nullable({base})"


def _base(source: SourceType, nullable_tuple: bool) -> str:
    name = source.name or ""
    if name in _TEMPORAL:
        return "String" if WIDE in source.parameters else _TEMPORAL[name]
    if name in ISO:
        return "String" if WIDE in source.parameters else f"DateTime64({_digits(source)}, 'UTC')"
    if name == _CONNECT + "Decimal":
        return _decimal(source)
    if name == "io.debezium.time.Year":
        return "UInt16"
    if name == "io.debezium.data.Uuid":
        return "UUID"
    if name == "io.debezium.data.Bits":
        length = int(source.parameter("length") or 0)
        return "UInt64" if 0 < length <= 64 else "String"
    if name == _POINT:
        return "Point"
    if source.kind == "array" and source.items is not None:
        return f"Array({_item(source.items, nullable_tuple)})"
    if source.kind == "map" and source.items is not None:
        keys = _base(source.keys, nullable_tuple) if source.keys is not None else "String"
        return f"Map({keys}, {_item(source.items, nullable_tuple)})" if keys in ("String", *_INTS) else "String"
    if source.kind in ("array", "map", "struct"):
        return "String"
    return _plain(source)


_INTS = ("Int8", "Int16", "Int32", "Int64")


def _item(source: SourceType, nullable_tuple: bool) -> str:
    # Members of arrays are plain: no LowCardinality, and an inner array has no null of its own in any database.
    base = _base(source, nullable_tuple)
    return f"Nullable({base})" if source.optional and not base.startswith(("Array(", "Map(")) else base


def _plain(source: SourceType) -> str:
    """Types without a semantic name, by the source column's own where the connector propagates it."""
    column = propagated_type(source)
    if source.kind in _INTS_BY_KIND:
        return column.unsigned or ("UInt16" if column.word == "YEAR" else _KINDS[source.kind])
    if source.kind == "string" and not source.name:
        # decimal.handling.mode=string; a UUID of SQL Server or MariaDB.
        if column.decimal is not None:
            return f"Decimal({column.decimal[0]}, {column.decimal[1]})"
        return "UUID" if column.is_uuid else "String"
    return _KINDS[source.kind]


_INTS_BY_KIND = frozenset(("int8", "int16", "int32", "int64"))


def _digits(source: SourceType) -> int:
    """Sub-second digits of a date-time sent as text: six, or more where the sample or the source column has them."""
    sampled = int(source.parameter(DIGITS) or 0)
    column = propagated_type(source)
    declared = (column.scale or 0) if column.word in ("DATETIMEOFFSET", "DATETIME2") else 0
    return min(max(6, sampled, declared), 9)


def _decimal(source: SourceType) -> str:
    scale = int(source.parameter("scale") or 0)
    column = propagated_type(source)
    if column.unsigned and scale == 0:
        return column.unsigned  # bigint.unsigned.handling.mode=precise
    precision = source.parameter("connect.decimal.precision")
    if precision is None and column.decimal is not None and column.decimal[1] == scale:
        precision = str(column.decimal[0])
    # MONEY, and connectors that state no precision: wide enough for 64 bits with that scale.
    unknown = 38 if 0 <= scale <= 18 else 76
    digits = unknown if precision is None else max(int(precision), scale, 1)
    if digits > 76 or not 0 <= scale <= digits:
        return "String"
    return f"Decimal({digits}, {scale})"


_WHOLE = {"Float32": 1 << 24, "Float64": 1 << 53}
"""All integers up to this one are floats of the type."""
_UNITS = ("io.debezium.time.", "org.apache.kafka.connect.data.")
_NO_UNIT = frozenset(("Decimal", "Year"))


PLAIN = "plain"
_TEXTS = frozenset(("String", "FixedString"))
_MOMENTS = frozenset("Date Date32 DateTime DateTime64 Time Time64".split())
_DIGITS = {"Timestamp": 3, "Time": 3, "MicroTimestamp": 6, "MicroTime": 6}


def reading(how: str, column: Column) -> str:
    """The meaning of a column's values if read so; two ways with one meaning give the same values.

    ``how``: ``plain``, as they look, or a type as column comments state it. Empty for a way that every other agrees
    with: numbers are themselves in a column of numbers.
    """
    target = parse_type(column.type).bare
    source = None if how == PLAIN else SourceType.from_comment(f"debezium: {how}")
    if target.name in _TEXTS:
        if source is None or source.kind == "string" or (source.kind.startswith("int") and not source.name):
            return PLAIN
        return unit(source) or how
    if target.name in _MOMENTS:
        if source is None or not source.name:
            return how
        return f"stated to {_DIGITS.get(unit(source), 9)} digits"
    if target.name == "Decimal":
        return how if source is None else "stated" if source.name or source.kind == "bytes" else ""
    return unit(source) if source is not None and source.kind.startswith("int") else ""


def natural(source: SourceType) -> ChType:
    """The type of the column that ``init`` creates for a source that is never null."""
    return parse_type(clickhouse_type(replace(source, optional=False))).bare


def unit(source: SourceType) -> str:
    """The unit that a number of the source type counts (days, milliseconds, …); empty if it is the number itself.

    Connect's own types and the connector's of the same name count the same.
    """
    for prefix in _UNITS:
        if (source.name or "").startswith(prefix):
            name = (source.name or "").removeprefix(prefix)
            return "" if name in _NO_UNIT else name
    return ""


def counts(target: ChType) -> bool:
    """Whether a column of the type holds times and dates as numbers, so that their unit is known by the source only."""
    return target.name in INTEGERS or target.name in WIDE_INTEGERS or target.name in ("Decimal", "Float32", "Float64")


def held(source: ChType, target: ChType) -> bool:
    """Whether a column of type ``target`` holds each value of ``source`` (as of `natural`) as itself.

    The years that a server holds do not count: a time beyond them is out of range everywhere.
    """
    if target.name == "SimpleAggregateFunction":
        return held(source, target.items[0].bare)
    if target.name == "Tuple" and len(target.items) == 1 and source.name in ("Array", "Map"):
        return held(source, target.items[0].bare)
    if target.name == "String" or source == target:
        return True
    if source.name in ("Array", "Map"):
        return source.name == target.name and all(
            held(one.bare, other.bare) and other.nullable >= one.nullable
            for one, other in zip(source.items, target.items, strict=True)
        )
    return _scalar_held(source, target)


def _scalar_held(source: ChType, target: ChType) -> bool:
    whole = target.precision - target.scale
    if source.name == target.name == "Decimal":
        return whole >= source.precision - source.scale and target.scale >= source.scale
    if source.name == "Bool":
        return counts(target) and (target.name != "Decimal" or whole > 0)
    if (bounds := integer_bounds(source)) is not None:
        if target.name == "Decimal":
            most = int(10**whole) - 1
            limits = (-most, most)
        elif target.name in _WHOLE:
            limits = (-_WHOLE[target.name], _WHOLE[target.name])
        else:
            limits = integer_bounds(target) or (0, -1)
        return limits[0] <= bounds[0] and bounds[1] <= limits[1]
    if source.name == "Float32":
        return target.name == "Float64"
    if source.name == "Date":
        return target.name == "Date32"
    if source.name == "Date32":
        return target.name == "DateTime64"
    if source.name == target.name == "DateTime64":
        return target.precision >= source.precision
    return False


def out_of_range(source: ChType, target: ChType) -> bool:
    """Whether the values that a column does not hold are out of its range, and all others are stored as themselves."""
    if held(source, target):
        return True
    if target.name == "SimpleAggregateFunction":
        return out_of_range(source, target.items[0].bare)
    if source.name == target.name == "Decimal":
        return True
    if integer_bounds(source) is not None:
        return target.name == "Decimal" or integer_bounds(target) is not None
    if source.name == "Date32":
        return target.name in ("Date", "DateTime")
    return False


def same_values(before: str, now: str, *, clamped: bool) -> bool:
    """Whether what a column of type ``before`` has stored is what one of type ``now`` would have stored of it.

    ``clamped``: values out of its range were stored as others, instead of being refused.
    """
    was, becomes = _as_values(parse_type(before)), _as_values(parse_type(now))
    if was == becomes:
        return True
    if clamped or was.nullable != becomes.nullable:
        return False
    return held(was.bare, becomes.bare) and out_of_range(becomes.bare, was.bare)


def _as_values(tree: ChType) -> ChType:
    """The type of the same values without what does not change them: dictionaries, numbers of labels, time zones."""
    if tree.name == "LowCardinality":
        return _as_values(tree.items[0])
    if tree.name in ("Enum8", "Enum16"):
        return ChType("String")
    arguments = tree.arguments[:1] if tree.name == "DateTime64" else () if tree.name == "DateTime" else tree.arguments
    return replace(tree, arguments=tuple(_as_values(a) if isinstance(a, ChType) else a for a in arguments))


def one_to_one(source: SourceType, column: Column) -> bool:
    """Whether values that differ never become one in the column, as a key needs: see `kept_apart`."""
    stated = column.stated
    if stated is not None and stated.names(source):
        source = stated  # as values are read
    # Where `init` makes a text of a number, for its digits, it is a number still.
    becomes = _NUMBER if source.name in _DECIMALS else natural(source)
    return kept_apart(becomes, parse_type(column.type).bare, text=source.kind != "bytes")


_DECIMALS = ("org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal")
_NUMBER = parse_type("Decimal(76, 38)").bare


def kept_apart(becomes: ChType, target: ChType, *, text: bool) -> bool:
    """Whether values that differ never become one in a column of type ``target``. Those out of its range do not count.

    A text's own form is lost in a column of another kind (``7`` and ``007``), as digits are in one of fewer.
    ``becomes``: the type that has all values as themselves. ``text``: if that is String, they are texts, not bytes.
    """
    if held(becomes, target) or out_of_range(becomes, target):
        return True
    if becomes.name == "String":
        return target.name in ("Enum8", "Enum16") or (target.name == "UUID" and not text)
    if becomes.name == "DateTime64":
        return target.name not in ("Date", "Date32", "DateTime", "DateTime64")
    return target.name not in _WHOLE
