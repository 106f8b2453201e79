"""Whether a column holds every value of a source type as itself, or rounds some of them."""

from dataclasses import replace

from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS, integer_bounds
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.column import Column, clickhouse_type
from ch_sink.types.connect import SourceType

_WHOLE = {"Float32": 1 << 24, "Float64": 1 << 53}
"""All integers up to this one are floats of the type."""
_UNITS = ("io.debezium.time.", "org.apache.kafka.connect.data.")
_NO_UNIT = frozenset(("Decimal", "Year"))


def natural(source: SourceType) -> ChType:
    """The type of the column that ``init`` creates for a source that is never null."""
    return parse_type(clickhouse_type(replace(source, optional=False))).bare


def unit(source: SourceType) -> str:
    """What a number of the source type counts (days, milliseconds, …); empty if it is the number itself.

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


def one_to_one(source: SourceType, column: Column) -> bool:
    """Whether values that differ never become one in the column, as a key needs. Those out of its range do not count.

    A text's own form is lost in a column of another kind (``7`` and ``007``), as digits are in one of fewer.
    """
    stated = column.stated
    if stated is not None and stated.name and not source.name and stated.kind == source.kind:
        source = stated  # as values are read
    becomes, target = natural(source), parse_type(column.type).bare
    if held(becomes, target) or out_of_range(becomes, target):
        return True
    if becomes.name == "String":
        return target.name in ("Enum8", "Enum16") or (target.name == "UUID" and source.kind == "bytes")
    if becomes.name == "DateTime64":
        return target.name not in ("Date", "Date32", "DateTime", "DateTime64")
    return target.name not in _WHOLE
