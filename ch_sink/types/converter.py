"""Converters: the way of one column from the wire's literals to the Arrow array that is inserted.

Debezium sends the unavailable-value placeholder as the text; its bytes (bytea; base64 or hex where the connector writes
binary as text); a one-element array of either; its byte values as an array of integers; a map or JSON of it to itself
(hstore); an array of the UUID made from it (``UUID.nameUUIDFromBytes``).
"""

import base64
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError

Encoding = Literal["json", "avro"]
Whole = Literal["integers", "texts", "flags", "floats", "base64"]
"""Kinds of columns that JSON may hold: of 64-bit integers, texts, booleans, numbers, and base64 of big-endian integers
(as 64-bit integers)."""
Reaction = Literal["fail", "clamp", "null", "exact"]
"""``Policy.out_of_range``."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A column's values, and what was special about them."""

    array: pa.Array
    unavailable: npt.NDArray[np.bool_] | None = None
    """Rows that held the unavailable-value placeholder (null in ``array``); None if there was none."""
    clamped: int = 0
    """How many values ``out_of_range: clamp | null`` changed."""


class Converter(Protocol):
    """Turns the literals of one column into Arrow."""

    @property
    def wire(self) -> Any:
        """Msgspec annotation of the literal without null, as strict as the type allows."""
        ...

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that is inserted into the column."""
        ...

    def convert(self, values: list[Any]) -> Converted:
        """Literals (None for null) to an array of :attr:`arrow`.

        Each value's result depends on that value alone. Raises DecodeError if one cannot be read or does
        not fit the column; the text names neither column nor record, which the caller knows.
        """
        ...


class OutOfRange(DecodeError):
    """A value that the column cannot hold; ``nearest`` is the one that it can (None if there is none)."""

    def __init__(self, message: str, nearest: Any = None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.nearest = nearest


class PerValue:
    """A converter that turns one value after the other: exact for any pair of types, the fallback of the fast ones."""

    def __init__(
        self,
        wire: Any,
        arrow: pa.DataType,
        function: Callable[[Any], Any],
        *,
        reaction: Reaction,
        is_placeholder: Callable[[Any], bool] | None = None,
        build: Callable[[list[Any]], pa.Array] | None = None,
    ) -> None:
        """``function`` gives what ``build`` (default: ``pa.array``) takes, and raises OutOfRange or DecodeError."""
        self.wire = wire
        self.arrow = arrow
        self._function = function
        self._reaction = reaction
        self._is_placeholder = is_placeholder
        self._build = build

    def convert(self, values: list[Any]) -> Converted:
        if isinstance(values, pa.Array):
            values = values.to_pylist()
        function, is_placeholder = self._function, self._is_placeholder
        out: list[Any] = [None] * len(values)
        unavailable: list[int] = []
        clamped = 0
        for i, value in enumerate(values):
            if value is None:
                continue
            if is_placeholder is not None and is_placeholder(value):
                unavailable.append(i)
                continue
            try:
                out[i] = function(value)
            except OutOfRange as fault:
                if self._reaction in ("fail", "exact") or (self._reaction == "clamp" and fault.nearest is None):
                    raise
                clamped += 1
                out[i] = fault.nearest if self._reaction == "clamp" else None
            except DecodeError:
                raise
            except (ValueError, TypeError, ArithmeticError, KeyError, AttributeError) as fault:
                raise DecodeError(f"cannot read {shown(value)}: {fault}") from fault
        try:
            array = self._build(out) if self._build else pa.array(out, self.arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as fault:
            raise DecodeError(f"cannot write a value as {self.arrow}: {fault}") from fault
        return Converted(array, masked(len(values), unavailable), clamped)


def takes_arrow(converter: Converter) -> bool:
    """Whether ``convert`` takes an Arrow array as well: of text, bytes, 64-bit integers, floats or booleans."""
    return bool(getattr(converter, "columnar", False))


def takes_whole(converter: Converter, kind: Whole) -> bool:
    """Whether ``convert`` takes an Arrow array of this kind of JSON's literals, with the result of its values' list."""
    return kind in getattr(converter, "whole", ())


def as_arrow(values: Any, arrow: pa.DataType) -> pa.Array:
    """A list of literals, or an Arrow array of them, as an array of this type. Raises what pyarrow raises."""
    return values.cast(arrow) if isinstance(values, pa.Array) else pa.array(values, arrow)


def nullable(wire: Any) -> Any:
    """The annotation of a literal that may be null. (msgspec takes no union with Raw, which holds null by itself.)"""
    return wire if wire is Any or wire is msgspec.Raw else wire | None


def masked(length: int, places: "list[int]") -> npt.NDArray[np.bool_] | None:
    """A mask that is True at these places, None for no places."""
    if not places:
        return None
    mask = np.zeros(length, dtype=np.bool_)
    mask[places] = True
    return mask


def without(array: pa.Array, forms: tuple[bytes, ...]) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """A binary array with these values replaced by null, and where they were (None: nowhere)."""
    found = None
    for form in forms:
        equal = pc.equal(array, pa.scalar(form, pa.binary()))
        if pc.any(equal).as_py():
            mask = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
            found = mask if found is None else found | mask
    if found is None:
        return array, None
    return pc.if_else(pa.array(found), pa.scalar(None, array.type), array), found


def shown(value: Any) -> str:
    """A value for an error text, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder text and what it looks like in columns of each kind."""

    text: str
    raw: bytes
    texts: tuple[bytes, ...]
    """Its forms in a column that is sent as text."""
    codes: tuple[int, ...]
    uuid: str

    def is_text(self, value: Any) -> bool:
        return isinstance(value, str) and value.encode("utf-8", "surrogatepass") in self.texts

    def is_bytes(self, value: Any) -> bool:
        return bool(value == self.raw)

    def is_array(self, value: Any) -> bool:
        """Whether an array's literal is the placeholder."""
        if len(value) == 1:
            only = value[0]
            return bool(only == self.raw or only == self.text or only == self.uuid or self.is_text(only))
        return len(value) == len(self.codes) and tuple(value) == self.codes

    def is_map(self, value: Any) -> bool:
        pairs = list(value.items()) if isinstance(value, dict) else list(value)
        return len(pairs) == 1 and tuple(pairs[0]) == (self.text, self.text)

    def is_json(self, value: Any) -> bool:
        """Whether a piece of JSON text (bytes, or ``msgspec.Raw``) is one of the forms."""
        text = bytes(value)
        if len(text) > 8 * len(self.raw) + 16:
            return False
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        if isinstance(found, str):
            return self.is_text(found)
        if isinstance(found, dict):
            return self.is_map(found)
        return isinstance(found, list) and self.is_array(found)


@lru_cache(maxsize=64)
def placeholder(text: str) -> Placeholder:
    """The forms of a placeholder text."""
    raw = text.encode()
    digest = bytearray(hashlib.md5(raw, usedforsecurity=False).digest())
    digest[6] = (digest[6] & 0x0F) | 0x30
    digest[8] = (digest[8] & 0x3F) | 0x80
    quoted = msgspec.json.encode(text)
    return Placeholder(
        text=text,
        raw=raw,
        texts=(
            raw,
            base64.b64encode(raw),
            base64.urlsafe_b64encode(raw),
            raw.hex().encode(),
            b"{" + quoted + b":" + quoted + b"}",
        ),
        codes=tuple(raw),
        uuid=str(uuid.UUID(bytes=bytes(digest))),
    )


class PlaceholderColumn:
    """Literals by another converter, placeholders as null and marked."""

    def __init__(self, inner: Converter, is_placeholder: Callable[[Any], bool]) -> None:
        self.wire: Any = inner.wire
        self.arrow = inner.arrow
        self._inner = inner
        self._is_placeholder = is_placeholder

    def convert(self, values: list[Any]) -> Converted:
        check = self._is_placeholder
        places = [i for i, value in enumerate(values) if value is not None and check(value)]
        if not places:
            return self._inner.convert(values)
        gone = set(places)
        found = self._inner.convert([None if i in gone else value for i, value in enumerate(values)])
        return Converted(found.array, masked(len(values), places), found.clamped)
