"""Values as Debezium's JSON has them: dates, moments, intervals, arrays, hstore, bit strings, points.

Each function is given the database's own literal: PostgreSQL's texts, MySQL's bytes.
"""

import json
import re
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from ch_sink.errors import DecodeError
from ch_sink.types import calendar

_DAY_IN_MICROS = 86_400_000_000


_DAY = 86_400_000_000_000


_INFINITE = ("infinity", "-infinity")


_ZERO = "0000-00-00"
"""MySQL's zero timestamp: streamed changes have the beginning of 1970 in its place."""


def moment(value: str | bytes) -> int | None:
    """Nanoseconds since 1970 of a moment in UTC; None for a day that does not exist, such as MySQL's 2024-01-00."""
    return _read(lambda text: calendar.parse_instant(text, 9), value)


def days(value: str | bytes) -> int | None:
    """Days since 1970."""
    return _read(calendar.parse_date, value)


def clock_time(value: str | bytes) -> int | None:
    """Nanoseconds of a time of day; MySQL's may be negative and longer than a day."""
    return _read(lambda text: calendar.parse_time(text, 9), value)


def _read(parse: Callable[[str], int], value: str | bytes) -> int | None:
    text = _text(value)
    if text.startswith("0000-"):
        return None
    try:
        return parse(text)
    except DecodeError:
        return None


def day_time(value: str | bytes) -> int | None:
    """The same in ``time.precision.mode=connect``, which knows no time before or behind the day."""
    nanos = clock_time(value)
    return nanos if nanos is not None and 0 <= nanos <= _DAY else None


def scaled(read: Callable[[str | bytes], int | None], divide: int) -> Callable[[str | bytes], int | None]:
    """The same in a coarser unit."""

    def encode(value: str | bytes) -> int | None:
        nanos = read(value)
        return None if nanos is None else nanos // divide

    return encode


def zoned(value: str | bytes) -> str:
    """A moment in UTC as text: ``2024-02-29T12:34:56.789Z``; years before the year 0 have a minus."""
    text = _text(value)
    if text in _INFINITE:
        return text
    if text.startswith(_ZERO):
        text = "1970-01-01" + text.removeprefix(_ZERO)
    if text.endswith(" BC"):
        year, rest = text.removesuffix(" BC").split("-", 1)
        text = f"{'-' if int(year) > 1 else ''}{int(year) - 1:04}-{rest}"
    text = text.replace(" ", "T")
    if text.endswith("+00"):
        return text[:-3] + "Z"
    return re.sub(r"([+-]00(:?00)?)?$", "", text.removesuffix("Z")) + "Z"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)


_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?")


_DAYS_OF_A_MONTH = 365.25 / 12


def micro_duration(value: str | bytes) -> int | None:
    """Microseconds of an interval in PostgreSQL's own style; a month counts as a twelfth of 365.25 days.

    What an int64 cannot hold is its limit.
    """
    found = _INTERVAL.fullmatch(str(value))
    if found is None:
        return None
    years, months, days = (int(part or 0) for part in found.groups()[:3])
    sign = -1 if found[4] == "-" else 1
    hours, minutes = (sign * int(part or 0) for part in found.groups()[4:6])
    seconds = sign * float(f"{found[7] or 0}.{found[8] or 0}")
    # In floating point and in this order, as the connector computes it.
    all_days = (years * 12 + months) * _DAYS_OF_A_MONTH + days
    micros = int((((all_days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1e6)
    return min(max(micros, -(2**63)), 2**63 - 1)


def zoned_time(value: str | bytes) -> str | None:
    """A time of day in UTC: ``07:04:56.789Z``."""
    found = _TIME.fullmatch(str(value))
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3])
    away = (int(found[6]) * 60 + int(found[7] or 0)) * 60 + int(found[8] or 0)
    clock = (hours * 60 + minutes) * 60 + seconds - (away if found[5] == "+" else -away)
    micros = (clock * 1_000_000 + int((found[4] or "0").ljust(6, "0"))) % _DAY_IN_MICROS
    whole, part = divmod(micros, 1_000_000)
    fraction = f".{part:06d}".rstrip("0") if part else ""
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{fraction}Z"


_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"]*))\s*(,|})')


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')


_BOUNDS = re.compile(r"^(\[[-\d:]+\])+=")
"""Of an array whose first element has another number than 1."""


_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*=>\s*(?:NULL|"((?:[^"\\]|\\.)*)")')


_WITH_SRID = 0x20000000


def array(
    element: Callable[[str | bytes], Any], *, nulls: bool = True, texts: bool = True
) -> Callable[[str | bytes], list[Any] | None]:
    """Of one dimension; the connector does not tell where it begins.

    Of an array of arrays it sends a null for each of them, or a text that says nothing (``texts``), which is None here.
    It leaves the whole array out for an element without a form (NaN as a decimal), and for a null without ``nulls``.
    """

    def encode(value: str | bytes) -> list[Any] | None:
        text = _BOUNDS.sub("", str(value))
        if text.startswith("{{"):
            return [None] * _arrays(text) if nulls and not texts else None
        found: list[Any] = []
        at = 1
        while text[at:] not in ("", "}") or (found and text[at - 1] == ","):
            match = _ELEMENT.match(text, at)
            if match is None:
                return None
            quoted, bare, after = match.groups()
            is_null = quoted is None and bare == "NULL"
            made = None if is_null else element(bare if quoted is None else _unescaped(quoted))
            if made is None and not (is_null and nulls):
                return None
            found.append(made)
            at = match.end()
            if after == "}":
                break
        return found

    return encode


def _arrays(text: str) -> int:
    """How many arrays an array of arrays holds."""
    depth = many = 0
    for bracket in _BRACKETS.findall(text):
        many += bracket == "{" and depth == 1
        depth += {"{": 1, "}": -1}.get(bracket, 0)
    return many


def hstore(value: str | bytes) -> dict[str, str | None]:
    """Pairs in the order in which Java's HashMap gives them, which is that of the connector."""
    pairs = {
        _unescaped(found[1]): None if found[2] is None else _unescaped(found[2]) for found in _PAIR.finditer(str(value))
    }
    return {name: pairs[name] for name in _hash_order(list(pairs))}


def hstore_json(value: str | bytes) -> str:
    """The same as the connector's JSON text."""
    text = json.dumps(hstore(value), ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"\\u00[01][0-9a-f]", lambda found: "\\u" + found[0][2:].upper(), text)


def bits(value: str | bytes) -> str:
    """Little-endian bytes, as base64. PostgreSQL writes digits, MySQL big-endian bytes."""
    if isinstance(value, bytes):
        return b64encode(value[::-1]).decode()
    size = max(1, -(-len(value) // 8))
    return b64encode(int(value or "0", 2).to_bytes(size, "little")).decode()


def bit_number(value: str | bytes) -> int:
    """The number that the same bits are."""
    return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value or "0", 2)


def point(value: str | bytes) -> dict[str, Any] | None:
    """A struct of coordinates, the point in well-known binary, and its reference system, which 0 leaves open."""
    if isinstance(value, bytes):
        srid, wkb = _split(value)
        if len(wkb) < 21:
            return None
        x, y = struct.unpack("<dd" if wkb[0] == 1 else ">dd", wkb[5:21])
    else:
        found = re.fullmatch(r"\(([^,]+),([^)]+)\)", value)
        if found is None:
            return None
        x, y, srid = float(found[1]), float(found[2]), None
        wkb = struct.pack("<BIdd", 1, 1, x, y)
    return {"x": x, "y": y, "wkb": b64encode(wkb).decode(), "srid": srid}


def geometry(value: str | bytes) -> dict[str, Any]:
    """A struct of a shape in well-known binary and its reference system. PostGIS writes hexadecimal digits."""
    if isinstance(value, bytes):
        srid, wkb = _split(value)
    else:
        wkb = bytes.fromhex(value)
        order = "<" if wkb[0] == 1 else ">"
        kind, first = struct.unpack(f"{order}II", wkb[1:9])
        srid = first if kind & _WITH_SRID else None
    return {"wkb": b64encode(wkb).decode(), "srid": srid}


def _split(value: bytes) -> tuple[int | None, bytes]:
    """MySQL's form: the reference system, then well-known binary."""
    return int.from_bytes(value[:4], "little") or None, value[4:]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _hash_order(names: list[str]) -> list[str]:
    """The order in which a HashMap that these were put into lists them: by slot, then as they came."""
    slots = 16
    while len(names) > slots * 3 // 4:
        slots *= 2
    return sorted(names, key=lambda name: _spread(name) & (slots - 1))


def _spread(text: str) -> int:
    code = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        code = (31 * code + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    return code ^ (code >> 16)
