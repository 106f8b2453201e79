"""Avro datums read by plain Python: the definition of what their bytes mean, and the way without a compiled reader.

It is strict where fastavro is lenient: fastavro takes 2 for a boolean, branch -1 of a union, symbol -1 of an enum and
numbers of more than 64 bits. It is as fast, and the tests compare both.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ch_sink.decode.avro.schema import Node
from ch_sink.decode.avro.vectors import Program, Struct, Values, Vector, Want, scan, where_present
from ch_sink.decode.framing import AVRO_HEAD
from ch_sink.decode.native.library import joined, library

UNREADABLE = (ValueError, LookupError, OverflowError, RecursionError, MemoryError)
"""Exceptions that reading bytes that do not follow their schema may raise."""

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Bytes and a place in them to the value there and the place after it. Raises UNREADABLE.

Values are None, bool, int, float, bytes, str, list and dict; a list of pairs for a map's entries; a dict of the type's
name and the value for a union of several types.
"""


class Unreadable(ValueError):
    """Datums do not follow their schema; ``places``: which."""

    def __init__(self, places: list[int]) -> None:
        super().__init__("datums do not follow their schema")
        self.places = places


def read(node: Node, values: Sequence[bytes], *, skip: int = 0, want: Want | None = None) -> Vector:
    """The values of this type without their first ``skip`` bytes; ``want``: the fields of a record to build.

    Raises Unreadable if any of them is not such a value.
    """
    one, found, bad = _row_reader(node), [], []
    for place, raw in enumerate(values):
        try:
            value, end = one(raw, skip)
        except UNREADABLE:
            bad.append(place)
        else:
            found.append(value)
            if end != len(raw):
                bad.append(place)
    if bad:
        raise Unreadable(bad)
    return _vector(node, found, want)


def read_group(node: Node, values: Sequence[bytes], made: Program | None, want: Want | None = None) -> Vector:
    """The framed values of a schema. ``made``: the program of the type and the fields to build, if it has one.

    Raises Unreadable.
    """
    native = library()
    if native is not None and made is not None:
        scanned = scan(native, made, joined(values), skip=AVRO_HEAD)
        if scanned is not None:
            return scanned
    return read(node, values, skip=AVRO_HEAD, want=want)


def _vector(node: Node, values: list[Any], want: Want | None) -> Vector:
    while node.null_branch >= 0:
        node = node.present
    if node.kind != "record":
        return Values(node.kind, values)
    fields = {
        member.name: _vector(
            member.type,
            [None if value is None else value[member.name] for value in values],
            want[member.name] if want else None,
        )
        for member in node.members
        if want is None or member.name in want
    }
    return Struct(len(values), where_present(values), fields)


@lru_cache(maxsize=1024)
def _row_reader(node: Node) -> Reader:
    """The reader of a record whose texts stay bytes: which of them must be UTF-8 is known later."""
    if node.kind == "string":
        return _sized
    if node.kind == "record":
        return _record([(member.name, _row_reader(member.type)) for member in node.members])
    if node.null_branch >= 0:
        return _union([_row_reader(branch) for branch in node.branches])
    return reader(node)


@lru_cache(maxsize=4096)
def reader(node: Node) -> Reader:
    """The reader of a type and of what is in it."""
    if node.kind in _SIMPLE:
        return _SIMPLE[node.kind]
    if node.kind == "record":
        return _record([(member.name, reader(member.type)) for member in node.members])
    if node.kind == "fixed":
        return lambda raw, at: _cut(raw, at, node.size)
    if node.kind == "enum":
        return _enum(node.symbols)
    if node.kind == "union":
        inner = [reader(branch) for branch in node.branches]
        if len(node.alternatives) > 1:
            names = iter(node.branch_names)
            inner = [
                one if branch.kind == "null" else _record([(next(names), one)])
                for one, branch in zip(inner, node.branches, strict=True)
            ]
        return _union(inner)
    assert node.items is not None
    return _map(reader(node.items)) if node.kind == "map" else _array(reader(node.items), node.entries)


def _boolean(raw: bytes, at: int) -> tuple[bool, int]:
    if raw[at] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return raw[at] == 1, at + 1


def _long(raw: bytes, at: int) -> tuple[int, int]:
    """Zigzag, seven bits a byte, the lowest first; at most 64 bits."""
    octet = raw[at]
    found, shift = octet & 127, 7
    while octet > 127:
        at += 1
        octet = raw[at]
        found |= (octet & 127) << shift
        shift += 7
        if found >> 64 or shift > 70:
            raise ValueError("a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1), at + 1


def _number(form: struct.Struct) -> Reader:
    def one(raw: bytes, at: int) -> tuple[float, int]:
        found, end = _cut(raw, at, form.size)
        return form.unpack(found)[0], end

    return one


def _cut(raw: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(raw):
        raise ValueError("it ends early")
    if size < 0:
        raise ValueError("a negative length")
    return raw[at:end], end


def _sized(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(raw, at)
    return _cut(raw, at, size)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    found, at = _sized(raw, at)
    return found.decode(), at


_SIMPLE: dict[str, Reader] = {
    "null": lambda raw, at: (None, at),
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _number(struct.Struct("<f")),
    "double": _number(struct.Struct("<d")),
    "bytes": _sized,
    "string": _text,
}


def _enum(symbols: tuple[str, ...]) -> Reader:
    def one(raw: bytes, at: int) -> tuple[str, int]:
        code, at = _long(raw, at)
        if code < 0:
            raise ValueError("a negative symbol")
        return symbols[code], at

    return one


def _record(fields: list[tuple[str, Reader]]) -> Reader:
    def one(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, field in fields:
            found[name], at = field(raw, at)
        return found, at

    return one


def _union(branches: list[Reader]) -> Reader:
    def one(raw: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(raw, at)
        if branch < 0:
            raise ValueError("a negative branch")
        return branches[branch](raw, at)

    return one


def _array(item: Reader, entries: bool) -> Reader:
    def one(raw: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        count, at = _block(raw, at)
        while count:
            for _ in range(count):
                value, at = item(raw, at)
                found.append((value["key"], value["value"]) if entries else value)
            count, at = _block(raw, at)
        return found, at

    return one


def _map(item: Reader) -> Reader:
    pairs = _array(_record([("key", _text), ("value", item)]), entries=True)

    def one(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        found, at = pairs(raw, at)
        return dict(found), at

    return one


def _block(raw: bytes, at: int) -> tuple[int, int]:
    """How many values follow; a negative number comes with their bytes, which nobody needs."""
    count, at = _long(raw, at)
    if count < 0:
        count, at = -count, _long(raw, at)[1]
    return count, at
