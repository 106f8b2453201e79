"""Drawn Avro schemas and datums, some of them odd, and what two ways of reading them say."""

import ctypes
import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode.avro.definition import Unreadable, Want, read
from ch_sink.decode.avro.schema import parse
from ch_sink.decode.avro.vectors import NotText, Struct, Texts, Vector, program, scan
from ch_sink.decode.native.library import Joined

Names = Mapping[str, Any]
"""Definitions of the named types, by full name."""


@dataclass(frozen=True)
class Branch:
    """A union's value, with the place of its type in the union."""

    index: int
    value: Any


def encoded(schema: Any, value: Any, names: Names) -> bytes:
    """The bytes of one value."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return _long(value.index) + encoded(schema[value.index], value.value, names)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return b"".join(encoded(f["type"], value[f["name"]], names) for f in schema["fields"])
    if kind == "array":
        items = b"".join(encoded(schema["items"], item, names) for item in value)
        return (_long(len(value)) + items if value else b"") + b"\0"
    if kind == "map":
        items = b"".join(
            encoded("string", k, names) + encoded(schema["values"], item, names) for k, item in value.items()
        )
        return (_long(len(value)) + items if value else b"") + b"\0"
    if kind == "enum":
        return _long(schema["symbols"].index(value))
    return _primitive(kind, value)


def _primitive(kind: str, value: Any) -> bytes:
    if kind == "null":
        return b""
    if kind in ("int", "long"):
        return _long(value)
    if kind == "boolean":
        return b"\1" if value else b"\0"
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "fixed":
        return bytes(value)
    raw = value.encode() if kind == "string" else value
    return _long(len(raw)) + bytes(raw)


def _long(value: int) -> bytes:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def expected(schema: Any, value: Any, names: Names) -> Any:
    """The expected value: that of a union of several types names its type."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        branch = schema[value.index]
        found = expected(branch, value.value, names)
        several = len([one for one in schema if one != "null"]) > 1
        return {_name(branch): found} if several and branch != "null" else found
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {f["name"]: expected(f["type"], value[f["name"]], names) for f in schema["fields"]}
    if kind == "array":
        return [expected(schema["items"], item, names) for item in value]
    if kind == "map":
        return {key: expected(schema["values"], item, names) for key, item in value.items()}
    return value


def _name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch.rpartition(".")[2]
    return str(branch.get("name", branch["type"])).rpartition(".")[2]


PRIMITIVES = ("int", "long", "string", "bytes", "float", "double", "boolean")
EDGES = (0, -1, 63, 64, -64, -65, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 62, 8191, 8192, (1 << 56) - 1)
TEXTS = (b"", b"a", b"shop", b"mysql", "é🦀".encode(), b"x" * 70, b"\xff", b"\xed\xa0\x80", b"\xc3")


def drawn_schema(rnd: random.Random, known: bool = True) -> Any:
    """A record. ``known``: only of types that have a program."""
    return _record(rnd, 3, [0], [], known)


def _record(rnd: random.Random, depth: int, number: list[int], named: list[str], known: bool) -> Any:
    number[0] += 1
    name = f"R{number[0]}"
    fields = [
        {"name": f"f{i}", "type": _type(rnd, depth - 1, number, named, known)} for i in range(rnd.choice((0, 1, 3, 5)))
    ]
    named.append(name)
    return {"type": "record", "name": name, "fields": fields}


def _type(rnd: random.Random, depth: int, number: list[int], named: list[str], known: bool) -> Any:
    kinds = [*PRIMITIVES, "fixed", "enum", "optional", "optional", "optional"]
    if depth > 0:
        kinds += ["record"] * 6 + ["named"] * bool(named)
    if not known:
        kinds += ["array", "map", "union", "null", "single"]
    kind = rnd.choice(kinds)
    number[0] += 1
    if kind == "record":
        return _record(rnd, depth, number, named, known)
    if kind == "named":
        return rnd.choice(named)
    if kind == "fixed":
        return {"type": "fixed", "name": f"F{number[0]}", "size": rnd.choice((0, 1, 4, 20))}
    if kind == "enum":
        return {"type": "enum", "name": f"E{number[0]}", "symbols": [f"S{i}" for i in range(rnd.choice((1, 3, 70)))]}
    if kind == "optional":
        inner = _type(rnd, depth, number, named, known)
        if isinstance(inner, list) or inner == "null":
            return inner
        return rnd.choice((["null", inner], [inner, "null"]))
    if kind in ("array", "map"):
        return {"type": kind, "items" if kind == "array" else "values": rnd.choice(PRIMITIVES)}
    return {"union": ["null", "long", "string"], "single": ["long"]}.get(kind, kind)


def long(number: int) -> bytes:
    """A number of up to 64 bits."""
    zigzag, out = (number << 1) ^ (number >> 63), bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _odd(rnd: random.Random, number: int) -> bytes:
    """A number, or the same in more bytes than it needs, or one of more than 64 bits, or one without an end."""
    shown = long(number)
    if rnd.random() < 0.5:
        return shown
    padded = bytes([*shown[:-1], shown[-1] | 128, *(128,) * rnd.randrange(9), 0])
    return rnd.choice((padded, b"\x80" * 9 + b"\1", b"\xff" * 9 + b"\1", b"\x80" * 9 + b"\2", b"\xff" * 11, shown))


def datum(rnd: random.Random, schema: Any, names: dict[str, Any], odd: float) -> bytes:
    """The bytes of a drawn value. ``odd``: how often it is one that nobody writes."""

    def wrong() -> bool:
        return rnd.random() < odd

    def number(value: int) -> bytes:
        return _odd(rnd, value) if wrong() else long(value)

    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        branch = rnd.randrange(len(schema))
        shown = number(rnd.choice((-1, 2, 3, 1 << 40)) if wrong() else branch)
        return shown + datum(rnd, schema[branch], names, odd)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        names[schema["name"]] = schema
        return b"".join([datum(rnd, field["type"], names, odd) for field in schema["fields"]])
    if kind in ("int", "long"):
        return number(rnd.choice(EDGES) if rnd.random() < 0.5 else rnd.randrange(-9000, 9000))
    if kind in ("string", "bytes"):
        text = rnd.choice(TEXTS if kind == "bytes" or rnd.random() < 0.01 else TEXTS[:6])
        return number(rnd.choice((-1, -(1 << 63), 1 << 40, (1 << 63) - 1)) if wrong() else len(text)) + text
    if kind in ("float", "double"):
        value = rnd.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), rnd.gauss(0, 9)))
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "boolean":
        return bytes([rnd.choice((2, 128, 255)) if wrong() else rnd.randrange(2)])
    if kind == "enum":
        many = len(schema["symbols"])
        return number(rnd.choice((-1, many, 1 << 40)) if wrong() else rnd.randrange(many))
    if kind == "fixed":
        return rnd.randbytes(schema["size"])
    if kind in ("array", "map"):
        item = datum(rnd, "string", names, 0) if kind == "map" else b""
        return number(1) + item + datum(rnd, schema["items" if kind == "array" else "values"], names, odd) + b"\0"
    return b""


def _changed(rnd: random.Random, raw: bytes) -> bytes:
    at, end = sorted((rnd.randrange(len(raw) + 1), rnd.randrange(len(raw) + 1)))
    more = rnd.randbytes(rnd.randrange(1, 4))
    return rnd.choice((raw[:at], raw + more, raw[:at] + more + raw[at:], raw[:at] + raw[end:], raw[:at] + raw[at:] * 2))


def _wanted(rnd: random.Random, schema: Any) -> Want | None:
    """Some of the fields, with some of theirs."""
    inner = schema
    if isinstance(schema, list):
        inner = next((one for one in schema if isinstance(one, dict) and one["type"] == "record"), None)
    if not isinstance(inner, dict) or inner["type"] != "record" or rnd.random() < 0.3:
        return None
    return {f["name"]: _wanted(rnd, f["type"]) for f in inner["fields"] if rnd.random() < 0.6}


def said(vector: Vector) -> Any:
    """All that a vector says, and what it has in place of nulls: numbers there may be asked for the least."""
    there: Any = vector.present().tolist()
    if (numbers := vector.numbers()) is not None:
        there = there, repr(numbers.tolist())
    if isinstance(vector, Struct):
        return there, {name: said(inner) for name, inner in vector.fields.items()}
    try:
        column = vector.column()
    except NotText as error:
        return there, error.places
    if not isinstance(column, pa.Array):
        return there, repr(column)
    column.validate(full=True)
    return there, str(column.type), repr(column.to_pylist()), column.null_count


def _all(vector: Vector) -> list[Vector]:
    inner = vector.fields.values() if isinstance(vector, Struct) else ()
    return [vector, *(one for part in inner for one in _all(part))]


def scanned_and_stepped(rnd: random.Random, native: ctypes.CDLL) -> tuple[list[str], bool]:
    """What differs between the two ways for a drawn group of a drawn schema, and whether the compiled one took it."""
    known = rnd.random() < 0.85
    schema = drawn_schema(rnd, known)
    odd, changes, skip = rnd.choice((0, 0, 0.02, 0.2)), rnd.choice((0, 0, 0.3)), rnd.choice((0, 5))
    values = []
    for _ in range(rnd.choice((0, 1, 1, 2, 9, 40))):
        raw = rnd.randbytes(skip) + datum(rnd, schema, {}, odd)
        values.append(_changed(rnd, raw) if rnd.random() < changes else raw)
    node, want = parse(json.dumps(schema)), _wanted(rnd, schema)
    bad: list[int] = []
    try:
        plain = read(node, values, skip=skip, want=want)
    except Unreadable as error:
        bad = error.places
    made = program(node, want)
    shown = f"{json.dumps(schema)}\n{want}\n{skip} {values}\n"
    if known and made is None:
        return [f"{shown}no program"], False
    found = scan(native, made, Joined(values), skip=skip) if made is not None else None
    if found is None:
        return ([f"{shown}refused"] if made is not None and not bad else []), False
    if bad:
        return [f"{shown}{bad} are bad"], True
    return [shown + one for one in apart(rnd, found, plain)], True


def apart(rnd: random.Random, found: Vector, plain: Vector) -> list[str]:
    """What two readings of the same datums say otherwise, of all of them and of some."""
    out = [f"{a}\n{b}" for a, b in [(said(found), said(plain))] if a != b]
    for vector, other in zip(_all(found), _all(plain), strict=True):
        if not isinstance(vector, Texts):
            continue
        texts, letters = vector.repeated(), vector.letters()
        if texts is not None and texts != other.tolist():
            out += [f"repeated {texts}"]
        # A letter may be no text: its octet is none of an operation's.
        if (
            letters is not None
            and max(letters, default=0) < 128
            and [chr(one) for one in letters]
            != [one if isinstance(one, str) else one.decode() for one in other.tolist()]
        ):
            out += [f"letters {letters}"]
    where = np.array([rnd.random() < 0.5 for _ in range(found.count)], dtype=np.bool_)
    found.only(where)
    plain.only(where)
    return out + [f"some: {a}\n{b}" for a, b in [(said(found), said(plain))] if a != b]
