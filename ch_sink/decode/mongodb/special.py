"""The BSON types that have no Python type of their own."""

import uuid
from typing import Any

__all__ = ["Binary", "Date", "Decimal", "Int64", "NonFinite", "ObjectId", "Other", "Special"]


class Special:
    """A BSON value without a matching Python type; compared by type and value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class ObjectId(Special):
    """24 hexadecimal digits."""

    __slots__ = ()


class Date(Special):
    """Milliseconds since 1970, any 64-bit number."""

    __slots__ = ()


class Decimal(Special):
    """Decimal128, as its text: digits, exponent, ``NaN``, ``Infinity``."""

    __slots__ = ()


class NonFinite(Special):
    """A double without a JSON literal: ``NaN``, ``Infinity`` or ``-Infinity``."""

    __slots__ = ()


class Int64(Special):
    """A 64-bit integer, if it must be distinguished from a 32-bit one (canonical form only)."""

    __slots__ = ()


class Binary(Special):
    """Bytes with their subtype."""

    __slots__ = ("subtype",)

    def __init__(self, value: bytes, subtype: int) -> None:
        super().__init__(value)
        self.subtype = subtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binary) and (other.value, other.subtype) == (self.value, self.subtype)

    __hash__ = Special.__hash__

    @property
    def uuid(self) -> str | None:
        """The text of a UUID (subtype 4, and 3 in its bytes' order); None for other bytes."""
        return str(uuid.UUID(bytes=self.value)) if self.subtype in (3, 4) and len(self.value) == 16 else None


class Other(Special):
    """Regular expression, code, symbol, timestamp, undefined, min and max key: its canonical Extended JSON."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The first name, such as ``$timestamp``."""
        return str(next(iter(self.value)))
