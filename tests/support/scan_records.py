"""Drawn records of a table: envelopes and flattened rows, with and without schema, in groups of mixed shapes."""

import json
import random
import re
from typing import Any

from tests.unit.types.type_cases import Case
from tests.unit.types.type_cases.case import Raw

TOKENS = [*rb"""
null true false 0 -0 -1 1 127 128 255 256 -128 -129 32768 65535 65536 1.0 1.5 -0.0 1e5 1E400 1e-400 01 1. tru 2147483648
9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 999999999999999999 4294967296
18446744073709551615 18446744073709551616 123456789012345678901234567890 0.1 547154.87257359 1.7976931348623157E308
9007199254740993 9007199254740993.0 123456789012345678.5 0.30000000000000004 1700000000000000 -1700000000000000 5e-324
"" "x" "15bytes_of_text" "16_bytes_of_text" "17_bytes_of_text_" "31_bytes_of_text_31_bytes_of_te" "true" "t" "0" "1.5"
"32_bytes_of_text_32_bytes_of_tex" "AA==" "AAAAAAAAAAA=" "f////w==" "AAAAAAAAAAAA" "AB==" "AA" "=A==" "A===" "gA=="
"__debezium_unavailable_value" "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==" ["__debezium_unavailable_value"] "10.0.0.1"
"5f5f646562657a69756d5f756e617661696c61626c655f76616c7565" "NaN" "-Infinity" "\u0000" "\ud83e\udd80" "\ud83e" "\q"
"fifteen_then_\n" "sixteen__then__\"" "\u00e9\u20ac" {} [] [null] [1,2] [1,] {"a":1} {"a":1,"a":2} "{\"a\":1}" "[1]"
{"scale":2,"value":"AQ=="} {"x":1.5,"y":2,"wkb":"AQ==","srid":null} "2024-02-29T12:34:56Z" "2024-02-29T12:34:56.7+02:00"
"2024-02-29" "99999-01-01T00:00:00Z" "12:34:56Z" "infinity" "8e647434-445e-3dec-bea0-4080688cb1eb" "c" "u" "d" "m"
"8E647434-445E-3DEC-BEA0-4080688CB1EB" "{8e647434-445e-3dec-bea0-4080688cb1eb}" "8e647434445e3decbea04080688cb1eb"
.5 - nulL "\udd80x" "\ud83e\u0041" "\u12" "\"\\\/\b\f\n\r\t" "8E647434-445E-3dec-bea0-4080688cb1eb" "\u0063" "first"
"mysql" "b.16777216" "b.7" [[[[]]]]
""".split(), '"é"'.encode(), '"ab漢🦀"'.encode(), b'"\xff"', b'"\xed\xa0\x80"', b'"\x01"',
               b'"\xc0\x80"', b'"\xf0\x9f\xa6\x80"', b'"\xf4\x90\x80\x80"', b" 1", b"1 ",
               b'"%s"' % (b"y" * 70),
               b"[" * 70 + b"]" * 70, b"[" * 5 + b"]" * 5, b"9" * 400]  # fmt: skip
VALUE = re.compile(rb'(?<=:)(null|true|false|-?[0-9.]+|"(?:[^"\\]|\\.)*")')
MORE = [
    Case("more", {"type": kind, "optional": True}, column, tuple((v, None) for v in values))
    for kind, column, values in (
        ("string", "UUID", ("8e647434-445e-3dec-bea0-4080688cb1eb",)),
        ("string", "Enum8('a' = 1, 'é' = 2)", ("a", "é")), ("int64", "Bool", (0, 1)), ("int64", "UInt64", (1,)),
        ("string", "FixedString(4)", ("ab", "é")), ("string", "Decimal(10, 2)", ("1.25", "-3")),
        ("string", "IPv4", ("10.0.0.1",)), ("string", "DateTime64(3, 'UTC')", ("2024-02-29T12:34:56.789Z",)),
        ("string", "JSON", ('{"a":1}',)), ("int64", "UInt8", (1, 255)), ("int64", "Int256", (1, -1)),
        ("int64", "Decimal(10, 2)", (1, 5)), ("int64", "Float64", (1, 2**60)), ("string", "Array(String)", ("[]",)),
        ("double", "Float32", (1.5, 3e38)), ("boolean", "Bool", (True,)), ("boolean", "UInt8", (True, False)),
        ("int64", "DateTime", (1700000000000,)), ("int64", "Date", (19000,)), ("int64", "Time64(6)", (5,)),
        ("int32", "Int8", (5,)), ("string", "Nullable(UUID)", ("8e647434-445e-3dec-bea0-4080688cb1eb",)),
    )
]  # fmt: skip
SOURCES: dict[str, dict[str, tuple[Any, ...]]] = {
    "mysql": {"file": ("b.7", "b.16777216", None, "", "b.8"), "pos": (4, 5, None, -1, 1 << 40), "row": (0, 1, None)},
    "postgresql": {"lsn": (1, None, 9), "sequence": ('["1","2"]', '[null,"5"]', None, "x")},
    "sqlserver": {"commit_lsn": ("1:2:3", None, "NULL"), "change_lsn": ("1:2:4", None), "event_serial_no": (1, "2")},
    "oracle": {"scn": ("7", 7, None), "commit_scn": ("8", None), "rs_id": ("0x1.2.3", None), "ssn": (0, "1", None)},
    "db2": {"commit_lsn": ("00000000:00001e36:000000000004a1b4", None), "change_lsn": (None,)},
    "singlestore": {"partitionId": (0, 1, None), "offsets": (["ff", None], None)},
    "vitess": {},
}  # fmt: skip


def changed(value: bytes, rnd: random.Random) -> bytes:
    """The value with one thing in it that is otherwise."""
    first = max(value.rfind(b'"payload":'), 0)
    spots = list(VALUE.finditer(value, first))
    if spots and rnd.random() < 0.7:
        spot = rnd.choice(spots)
        return value[: spot.start()] + rnd.choice(TOKENS) + value[spot.end() :]
    at = rnd.randrange(first, len(value) + 1)
    end = at + rnd.randrange(1, 30)
    odd = (b"", bytes([rnd.randrange(256)]), value[at:end] * 2, b'"', b"\\", b" ", b"\xef\xbb\xbf")
    return value[:at] + rnd.choice(odd) + value[end:]


def literal(value: Any) -> bytes:
    """JSON as machines write it."""
    text = str(value) if isinstance(value, Raw) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


STYLES = ("typed", "typed", "typed", "typed or null", "typed or null", "null", "late", "wild", "one wild")
OPS = ("c", "c", "cu", "cud", "d", "cudt", "cudm", "rcu")


class Writer:
    """Writes records of one table."""

    def __init__(self, rnd: random.Random, cases: dict[str, Case], key: tuple[str, ...]) -> None:
        self._rnd, self._cases, self._key = rnd, cases, key
        self._connector = rnd.choice([*SOURCES, "mysql", "postgresql"])
        self._flat = rnd.random() < 0.3
        self._schema = rnd.random() < 0.3
        self._keys = rnd.choice(("struct", "struct", "schema", "text", "none"))
        self._number = 0

    def records(self) -> tuple[list[bytes | None], list[bytes | None]]:
        """Keys and values of a group."""
        rnd = self._rnd
        count = rnd.choice((1, 2, 3, 5, 17, 18, 40, 63, 64))
        self._styles = {name: rnd.choice(STYLES) for name in self._cases}
        self._order = ["id", *self._cases]
        if rnd.random() < 0.2:
            rnd.shuffle(self._order)
        if rnd.random() < 0.1:
            self._order.remove(rnd.choice(self._order))
        if rnd.random() < 0.2 and not self._schema:
            self._order.append(rnd.choice(("new", "_version", "né", "_is_deleted")))
        self._before = rnd.choice(("null", "null", "full", "key", "more", "mixed", "absent", "late"))
        self._block = {n: rnd.choice(values) for n, values in SOURCES[self._connector].items() if rnd.random() < 0.9}
        self._vary = rnd.random() < 0.3
        ops = rnd.choice(OPS)
        letters = [rnd.choice(ops) for _ in range(count)]
        how = rnd.random()
        if how < 0.2:
            letters.sort(reverse=rnd.random() < 0.5)
        elif how < 0.4:
            letters = [ops[i % len(ops)] for i in range(count)]
        values: list[bytes | None] = [self._value(i, op) for i, op in enumerate(letters)]
        keys: list[bytes | None] = [self._key_of(i) for i in range(count)]
        for chosen, share in ((values, 0.35), (keys, 0.15)):
            if rnd.random() < share:
                at = rnd.randrange(count)
                chosen[at] = changed(chosen[at] or b"x", rnd) if rnd.random() < 0.9 else None
        return keys, values

    def _literal(self, name: str, at: int) -> bytes:
        rnd = self._rnd
        if name not in self._cases:
            return rnd.choice(TOKENS[:40]) if name != "id" else b"%d" % at
        style = self._styles[name]
        if style == "null" or (style == "late" and at < 17) or (style == "typed or null" and rnd.random() < 0.4):
            return b"null"
        if style == "wild" or (style == "one wild" and rnd.random() < 0.05):
            return rnd.choice(TOKENS)
        return literal(rnd.choice(self._cases[name].values)[0])

    def _row(self, names: list[str], at: int) -> bytes:
        return b"{" + b",".join(literal(name) + b":" + self._literal(name, at) for name in names) + b"}"

    def _value(self, at: int, op: str) -> bytes:
        payload = self._flattened(at, op) if self._flat else self._envelope(at, op)
        if not self._schema:
            return payload
        row = [{"field": n, **self._declared(n)} for n in self._order]
        envelope = [{"field": n, "type": "struct", "optional": True, "fields": row} for n in ("before", "after")]
        more = [{"field": n, "type": "string", "optional": True} for n in ("__op", "__deleted", "__connector")]
        fields = [*row, *(f for f in more if f["field"] not in self._order)] if self._flat else envelope
        return b'{"schema":' + literal({"type": "struct", "fields": fields}) + b',"payload":' + payload + b"}"

    def _declared(self, name: str) -> dict[str, Any]:
        return self._cases[name].schema if name in self._cases else {"type": "int64", "optional": False}

    def _envelope(self, at: int, op: str) -> bytes:
        rnd = self._rnd
        after = b"null" if op in "dt" and rnd.random() < 0.98 else self._row(self._order, at)
        how = self._before if self._before != "mixed" else rnd.choice(("null", "full"))
        how = ("null" if at < 17 else "full") if how == "late" else how
        before = b"null"
        if how != "null" or (op == "d" and rnd.random() < 0.9):
            before = self._row({"key": ["id"], "more": [*self._order, "old"]}.get(how, self._order), at)
        members = {b"before": before, b"after": after, b"source": self._source(), b"op": literal(op)}
        if how == "absent":
            del members[b"before"]
        if self._connector == "mysql":
            members[b"transaction"] = b"null"
        members[b"ts_ms"] = b"1700000000000"
        if op == "m":
            members = {b"op": b'"m"', b"source": members[b"source"], b"message": b'{"prefix":"x","content":"AA=="}'}
        return b"{" + b",".join(b'"' + name + b'":' + text for name, text in members.items()) + b"}"

    def _source(self) -> bytes:
        rnd = self._rnd
        if self._vary:
            self._block |= {n: rnd.choice(SOURCES[self._connector][n]) for n in self._block}
        block: dict[str, Any] = {"version": "3.0", "connector": self._connector, "name": "s", "ts_ms": 1, **self._block}
        if self._vary:
            block["ts_ms"] = rnd.choice((1, 2, None, 1700000000000))
        block["snapshot"] = rnd.choice(("false", "true", "last", None, True)) if self._vary else "false"
        return literal(block) if rnd.random() < 0.998 else b"null"

    def _flattened(self, at: int, op: str) -> bytes:
        rnd = self._rnd
        row = self._row(self._order, at)[1:-1]
        added: dict[str, Any] = {"__deleted": "true" if op == "d" else "false", "__op": op}
        if self._before in ("null", "full"):
            added |= {"__connector": self._connector, "__source_ts_ms": 5, "__table": "t"}
            added |= {f"__source_{name}": value for name, value in self._block.items()}
        if self._before == "absent":
            del added["__deleted"]
        if self._vary:
            added["__deleted"] = rnd.choice(("true", "false", True, None))
        more = b",".join(
            literal(name) + b":" + literal(value) for name, value in added.items() if name not in self._order
        )
        return b"{" + row + b"," + more + b"}"

    def _key_of(self, at: int) -> bytes | None:
        if self._keys == "none":
            return None
        if self._keys == "text":
            return b"%d" % at
        key = self._row(list(self._key), at)
        if self._keys == "struct":
            return key
        fields = [{"field": n, **self._declared(n)} for n in self._key]
        return b'{"schema":' + literal({"type": "struct", "fields": fields}) + b',"payload":' + key + b"}"
