"""One value after the other: for what has no fixed number of steps (arrays, maps, unions of several types)."""

import struct
from collections.abc import Callable
from typing import Any

from ch_sink.decode.avro.schema import Node

__all__ = ["Reader", "reader_of"]

Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""Bytes, place of the value, end of its datum → value and the place behind it. Raises ValueError."""

_ENDS_EARLY = "it ends early"


def reader_of(node: Node) -> Reader:
    """The reader of a type. Values are None, bool, int, float, bytes, str, list, dict; a list of pairs for entries."""
    if node.kind in _SIMPLE:
        return _SIMPLE[node.kind]
    if node.kind == "fixed":
        return _fixed(node.size)
    if node.kind == "enum":
        return _enum(node.symbols)
    if node.kind == "record":
        return _record(node)
    if node.kind == "union":
        return _union(node)
    assert node.items is not None
    return _map(reader_of(node.items)) if node.kind == "map" else _array(reader_of(node.items), node.entries)


def _null(raw: bytes, at: int, end: int) -> tuple[Any, int]:
    return None, at


def _long(raw: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end:
            raise ValueError(_ENDS_EARLY)
        octet = raw[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            break
        shift += 7
    if value >> 64:
        raise ValueError("an integer has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _boolean(raw: bytes, at: int, end: int) -> tuple[bool, int]:
    if at >= end or raw[at] > 1:
        raise ValueError(_ENDS_EARLY if at >= end else "a boolean is neither 0 nor 1")
    return raw[at] == 1, at + 1


def _bytes(raw: bytes, at: int, end: int) -> tuple[bytes, int]:
    length, at = _long(raw, at, end)
    if not 0 <= length <= end - at:
        raise ValueError(_ENDS_EARLY)
    return raw[at : at + length], at + length


def _string(raw: bytes, at: int, end: int) -> tuple[str, int]:
    found, at = _bytes(raw, at, end)
    return found.decode(), at


def _number(form: str) -> Reader:
    shape = struct.Struct(form)

    def read(raw: bytes, at: int, end: int) -> tuple[float, int]:
        if at + shape.size > end:
            raise ValueError(_ENDS_EARLY)
        return shape.unpack_from(raw, at)[0], at + shape.size

    return read


_SIMPLE: dict[str, Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Reader:
    def read(raw: bytes, at: int, end: int) -> tuple[bytes, int]:
        if at + size > end:
            raise ValueError(_ENDS_EARLY)
        return raw[at : at + size], at + size

    return read


def _enum(symbols: tuple[str, ...]) -> Reader:
    def read(raw: bytes, at: int, end: int) -> tuple[str, int]:
        which, at = _long(raw, at, end)
        if not 0 <= which < len(symbols):
            raise ValueError(f"an enum has no symbol {which}")
        return symbols[which], at

    return read


def _record(node: Node) -> Reader:
    members = [(m.name, reader_of(m.type)) for m in node.members]

    def read(raw: bytes, at: int, end: int) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}
        for name, member in members:
            out[name], at = member(raw, at, end)
        return out, at

    return read


def _union(node: Node) -> Reader:
    branches = [reader_of(branch) for branch in node.branches]

    def read(raw: bytes, at: int, end: int) -> tuple[Any, int]:
        which, at = _long(raw, at, end)
        if not 0 <= which < len(branches):
            raise ValueError(f"a union has no branch {which}")
        return branches[which](raw, at, end)

    return read


def _blocks(item: Callable[[bytes, int, int], int]) -> Callable[[bytes, int, int], int]:
    """Steps over blocks of items, each taken by ``item``, which gives the place behind it."""

    def read(raw: bytes, at: int, end: int) -> int:
        while True:
            count, at = _long(raw, at, end)
            if count < 0:
                count = -count
                _, at = _long(raw, at, end)  # the block's size in bytes
            if count > end - at:  # every item that Connect writes has a byte at least
                raise ValueError(_ENDS_EARLY)
            if not count:
                return at
            for _ in range(count):
                at = item(raw, at, end)

    return read


def _array(item: Reader, entries: bool) -> Reader:
    def read(raw: bytes, at: int, end: int) -> tuple[list[Any], int]:
        out: list[Any] = []

        def one(raw: bytes, at: int, end: int) -> int:
            found, at = item(raw, at, end)
            out.append((found["key"], found["value"]) if entries else found)
            return at

        return out, _blocks(one)(raw, at, end)

    return read


def _map(item: Reader) -> Reader:
    def read(raw: bytes, at: int, end: int) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}

        def one(raw: bytes, at: int, end: int) -> int:
            key, at = _string(raw, at, end)
            out[key], at = item(raw, at, end)
            return at

        return out, _blocks(one)(raw, at, end)

    return read
