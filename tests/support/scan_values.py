"""What drawn JSON records are made of: values at and beyond what columns hold, blocks of source systems, faults."""

import json
import random
import re
from typing import Any

from tests.unit.types.type_cases import Case
from tests.unit.types.type_cases.case import Raw

__all__ = ["MORE", "SOURCES", "TOKENS", "changed", "literal"]

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
