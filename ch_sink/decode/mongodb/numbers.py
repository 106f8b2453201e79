"""Numbers of any BSON type as the literals of numeric columns."""

import decimal
from typing import Any

from ch_sink.decode.mongodb.special import Decimal, Int64, NonFinite
from ch_sink.errors import DecodeError
from ch_sink.types import OutOfRange
from ch_sink.types.converter import shown
from ch_sink.types.integers import fit

__all__ = ["decimal_of", "flag_of", "float_of", "integer_of"]

_MOST_DIGITS = 100


def integer_of(value: Any, low: int, high: int, what: str) -> int:
    """A whole number of any of BSON's numeric types (old shells wrote every number as a double), or the text of one.

    A stored plain document holds a Decimal128 as text. Raises DecodeError, and OutOfRange for numbers that are
    not whole or not within the bounds.
    """
    if isinstance(value, int):
        return fit(int(value), low, high, what)
    if isinstance(value, Int64):
        return fit(value.value, low, high, what)
    number = _number(value)
    if number is None:
        raise DecodeError(f"expected a number, found {shown(value)}")
    if not number.is_finite():
        raise OutOfRange(f"{number} does not fit {what}")
    if number.adjusted() > _MOST_DIGITS:  # do not build an integer of thousands of digits
        raise OutOfRange(f"{number} does not fit {what}", low if number < 0 else high)
    if number != number.to_integral_value():
        raise OutOfRange(f"{number} is not a whole number, but the column is {what}", max(low, min(high, int(number))))
    return fit(int(number), low, high, what)


def _number(value: Any) -> decimal.Decimal | None:
    text = repr(value) if isinstance(value, float) else value
    if isinstance(value, (Decimal, NonFinite)):
        text = value.value
    try:
        return decimal.Decimal(text) if isinstance(text, str) else None
    except decimal.InvalidOperation:
        return None


def float_of(value: Any) -> float:
    """A double; Decimal128 becomes the nearest one. Raises DecodeError."""
    if isinstance(value, Int64):
        return float(value.value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    number = _number(value)
    if number is None:
        raise DecodeError(f"expected a number, found {shown(value)}")
    return float(number)


def decimal_of(value: Any) -> str:
    """The text of a number, a double's shortest one. Raises DecodeError."""
    if isinstance(value, Int64):
        return str(value.value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, Decimal):
        text: str = value.value
        return text
    if isinstance(value, str):
        return value
    raise DecodeError(f"expected a number, found {shown(value)}")


def flag_of(value: Any) -> bool:
    """A boolean, 0 or 1. Raises DecodeError."""
    if isinstance(value, Int64):
        value = value.value
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise DecodeError(f"expected true or false, found {shown(value)}")
