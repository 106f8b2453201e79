"""Draws Avro schemas and datums that want to cost time and memory: shared, endless, weightless types, large values."""

import ctypes
import gc
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.hostile import MOST, NAMES, length

BITS = "io.debezium.data.Bits"


def avro(rng: random.Random) -> tuple[str, bytes]:
    """An Avro schema and bytes that may be a datum of it."""
    fields: list[Any] = [{"name": "id", "type": "long"}]
    for name in rng.sample(NAMES[1:], rng.choice((1, 3))):
        fields += [{"name": name, "type": _avro_type(rng, 0, [0])}]
    if rng.random() < 0.2:
        fields += [{"name": f"u{i}", "type": ["null", "string"]} for i in range(length(rng, 8_000))]
    if rng.random() < 0.4:
        fields.append({"name": "shared", "type": _shared(rng)})
    row = {"type": "record", "name": "Value", "fields": fields}
    connector = {"type": "enum", "name": "Connector", "symbols": [rng.choice(("mysql", "postgresql", "other"))]}
    common = [{"name": "connector", "type": connector}]
    common += [{"name": n, "type": "string"} for n in ("name", "file", "sequence")]
    schema: Any = {
        "type": "record", "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": common}},
            {"name": "op", "type": {"type": "enum", "name": "Op", "symbols": ["c"]}},
        ],
    }  # fmt: skip
    if rng.random() < 0.2:
        schema = row  # flattened
    if rng.random() < 0.6:
        try:
            return json.dumps(schema), _Datum(rng).of(schema, length(rng))[: MOST - 9]
        except (RecursionError, KeyError):
            pass
    body = rng.choice((b"\0", b"\2", b"\1", b"\4", b"\xff", b"\x80\x80\x04", b"\2\0", b"\2a", b"\xfe\xff\xff\xff\x0f"))
    many = rng.randbytes(rng.choice((0, 9))) + body * (length(rng) // len(body))
    return json.dumps(schema), ((b"\0\2\2" if schema is not row else b"\2") + many)[: MOST - 9]


class _Datum:
    """Writes a datum of a schema, with large values in it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._named, self._steps = rng, dict[str, Any](), 0

    def of(self, schema: Any, room: int, depth: int = 0) -> bytes:
        rng = self._rng
        self._steps += 1
        if self._steps > 20_000:
            raise KeyError("a schema whose datums have no end")
        if isinstance(schema, list):
            branch = rng.randrange(len(schema)) if depth > 1 else len(schema) - 1 if rng.random() < 0.9 else 0
            if depth > 60:
                branch = 0
            return _long(branch) + self.of(schema[branch], room, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in self._named and isinstance(schema, str):
            return self.of(self._named[kind], room, depth + 1)
        if not isinstance(schema, str) and "name" in schema:
            self._named[schema["name"]] = schema
        if kind in ("int", "long"):
            return _long(rng.choice((0, 1, -1, 2**31 - 1, 2**62, -(2**63), 16_383, 200_000)))
        if kind in ("string", "bytes"):
            many = rng.choice((b"a", b" ", b"9", b"\0", b"\xff", b"[", b'{"a":')) * (length(rng, max(room, 2)) // 2)
            return _long(len(many)) + many
        if kind == "record":
            parts = schema["fields"]
            return b"".join(self.of(part["type"], room // len(parts), depth + 1) for part in parts)
        if kind in ("array", "map"):
            inner = schema["items" if kind == "array" else "values"]
            item = (b"\2k" if kind == "map" else b"") + self.of(inner, rng.choice((0, 9, room // 9)), depth + 1)
            times = min(length(rng, max(room, 2)) // max(len(item), 1), 1_000_000) if item else 1 << 40
            return _long(times) + item * (times if item else 0) + b"\0" if times else b"\0"
        if kind == "enum":
            return b"\0"
        if kind == "fixed":
            return b"\7" * min(schema["size"], 1000)
        return {"null": b"", "boolean": b"\1", "float": b"\0" * 4, "double": b"\xff" * 8}[kind]


def _long(number: int) -> bytes:
    """Avro's int or long."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*out, rest))


def _avro_type(rng: random.Random, depth: int, number: list[int]) -> Any:
    number[0] += 1
    own = f"T{depth}_{number[0]}_{rng.randrange(1 << 30)}"
    if depth > 4 or rng.random() < 0.4:
        simple: Any = rng.choice(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
        if rng.random() < 0.4:
            scale = rng.choice((0, 9, 30, 1000, 4_000_000, -1_000_000, 10**9))
            size = rng.choice((0, 1, 16, 1000, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30))
            simple = rng.choice(
                (
                    {"type": "bytes", "logicalType": "decimal", "scale": scale, "precision": 10},
                    {"type": "bytes", "connect.name": BITS, "connect.parameters": {"length": "80000000"}},
                    {"type": "fixed", "name": own, "size": size, "logicalType": rng.choice(("decimal", "duration"))},
                    {"type": "enum", "name": own, "symbols": [f"s{i}" for i in range(length(rng, 20_000))]},
                    {"type": "long", "logicalType": "timestamp-nanos"},
                    {"type": "record", "name": own, "connect.name": "io.debezium.data.VariableScaleDecimal",
                     "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]},
                )
            )  # fmt: skip
        return simple if rng.random() < 0.5 else ["null", simple] if simple != "null" else ["null", "string"]
    inner = _avro_type(rng, depth + 1, number)
    what = rng.randrange(5)
    if what == 0:
        return {"type": "array", "items": inner}
    if what == 1:
        return {"type": "map", "values": inner}
    if what == 2:
        return {
            "type": "record",
            "name": own,
            "fields": [{"name": f"f{i}", "type": _avro_type(rng, depth + 1, number)} for i in range(length(rng, 12))],
        }
    if what == 3:
        kinds = ["null", "long", "string", "boolean", "double", {"type": "array", "items": "long"}]
        return rng.sample(kinds, rng.randint(1, len(kinds)))
    kids = rng.choice((["null", own], {"type": "array", "items": own}, {"type": "map", "values": own}, own))
    return {
        "type": "record",
        "name": own,
        "fields": [{"name": "n", "type": rng.choice(("null", "long"))}, {"name": "next", "type": kids}],
    }


def _shared(rng: random.Random) -> Any:
    """Named types of which each holds the former one several times, or once in a long chain."""
    chain = rng.random() < 0.5
    made: Any = {
        "type": "record",
        "name": "R0",
        "fields": [{"name": "x", "type": rng.choice(("long", "null", "string"))}],
    }
    for i in range(1, length(rng, 90 if chain else 40) + 1):
        fields = [{"name": "a", "type": made}]
        if not chain:
            again = rng.choice((f"R{i - 1}", ["null", f"R{i - 1}"], {"type": "array", "items": f"R{i - 1}"}))
            fields += [{"name": f"b{n}", "type": again} for n in range(rng.choice((1, 1, 3)))]
        made = {"type": "record", "name": f"R{i}", "fields": fields}
    return made


_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Cost:
    """``mib``: beyond what the process had before; 0 where the system does not tell."""

    seconds: float
    mib: float


def costing(call: Callable[[], object]) -> Cost:
    """What this call costs."""
    gc.collect(0)
    _trim()
    before = _reset()
    began = time.process_time()
    call()
    seconds = time.process_time() - began
    return Cost(seconds, (_kib("VmHWM") - before) / 1024 if before else 0.0)


def _trim() -> None:
    """Give back what earlier calls have freed: else it would serve this one unseen."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset() -> int:
    """Let the peak begin anew; what the process has now, in KiB, 0 if the system does not tell."""
    try:
        _PEAK.write_text("5")
        return _kib("VmRSS")
    except OSError:
        return 0


def _kib(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
