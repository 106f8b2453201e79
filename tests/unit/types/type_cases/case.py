"""What a type case is, and the arithmetic that connectors do, in Python's own integers, decimals and calendar.

The literal and the text that ClickHouse shows are both made from the source's value; nothing here calls the sink.
"""

import base64
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

__all__ = [
    "CONNECT",
    "DATA",
    "TIME",
    "Case",
    "Raw",
    "array",
    "b64",
    "connect_decimal",
    "dates",
    "datetimes",
    "decimals",
    "exact",
    "field",
    "named",
    "octets",
    "spatial",
    "texts",
    "times",
    "zoned",
]

DATA, TIME, CONNECT = "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data."
_EPOCH = datetime.datetime(1970, 1, 1)

Shown = str | bytes | None
"""What ``toString`` shows of a stored value; None for NULL."""


class Raw(str):
    """JSON text that goes into the event as it stands: numbers of any length."""


@dataclass(frozen=True)
class Case:
    """One column of a source with its values."""

    what: str
    """Source type, and the connector's mode where one matters."""
    schema: dict[str, Any]
    """The field of the row's Connect schema."""
    column: str
    """The ClickHouse type that ``init`` makes of it."""
    values: tuple[tuple[Any, Shown], ...]
    """Literal in the event, and what ClickHouse shows of it."""
    untold: str = ""
    """Why plain JSON and the column's type alone do not tell how to read the literal; empty where they do."""


def field(kind: str, name: str | None = None, *, optional: bool = True, **more: Any) -> dict[str, Any]:
    """A field's schema. Words in ``more`` that are not Connect's own go to ``parameters``."""
    own = {k: more.pop(k) for k in ("items", "keys", "values", "fields", "default") if k in more}
    out: dict[str, Any] = {"type": kind, "optional": optional, **own}
    if name is not None:
        out |= {"name": name, "version": 1}
    if more:
        out["parameters"] = {k.replace("__dot__", "."): str(v) for k, v in more.items()}
    return out


def named(name: str, fields: dict[str, dict[str, Any]], *, optional: bool = True) -> dict[str, Any]:
    """The schema of a struct with a semantic name."""
    return {
        **field("struct", name, optional=optional),
        "fields": [{"field": n, **schema} for n, schema in fields.items()],
    }


def array(items: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    return field("array", name, items=items)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def exact(what: str, schema: dict[str, Any], column: str, *values: Any, untold: str = "") -> Case:
    """A case whose values are shown as they are sent, by ``str``."""
    return Case(what, schema, column, tuple((v, _shown(v)) for v in values), untold)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else str(value)


def texts(what: str, schema: dict[str, Any], column: str = "Nullable(String)", *values: str, untold: str = "") -> Case:
    found = values or ("", " ", "é漢🦀", "a\tb\n\\'\"", "null", "NULL", "\u0000x", "x" * 5000)
    return Case(what, schema, column, tuple((v, v) for v in found), untold)


def octets(what: str, *values: bytes) -> list[Case]:
    """Binary in all four modes of ``binary.handling.mode``; as text the sink leaves it as it was sent."""
    found = values or (b"", b"\x00", b"\xff\xfe\x00A", bytes(range(256)))
    base, safe = base64.b64encode, base64.urlsafe_b64encode
    ways = {"base64": base, "base64-url-safe": safe, "hex": lambda raw: raw.hex().encode()}
    return [
        Case(
            f"{what}, bytes",
            field("bytes"),
            "Nullable(String)",
            tuple((b64(v), v) for v in found),
            untold="base64 into String stays base64",
        )
    ] + [
        Case(f"{what}, {mode}", field("string"), "Nullable(String)", tuple((way(v).decode(), way(v)) for v in found))
        for mode, way in ways.items()
    ]


def connect_decimal(text: str, scale: int) -> str:
    """Java's BigInteger bytes of the unscaled value, as base64."""
    unscaled = int(Decimal(text).scaleb(scale, Context(prec=200)))
    size = 1
    while not -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1:
        size += 1
    return b64(unscaled.to_bytes(size, "big", signed=True))


def plain(text: str) -> str:
    """As ClickHouse shows a Decimal: no zeros behind the last digit that counts."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(what: str, precision: int | None, scale: int, *values: str, column: str = "") -> list[Case]:
    """A decimal in the three modes of ``decimal.handling.mode``."""
    parameters = {"scale": scale} | ({"connect__dot__decimal__dot__precision": precision} if precision else {})
    return [
        Case(
            f"{what}, precise",
            field("bytes", CONNECT + "Decimal", **parameters),
            column or f"Nullable(Decimal({precision}, {scale}))",
            tuple((connect_decimal(v, scale), v if column == "Nullable(String)" else plain(v)) for v in values),
            untold="String takes base64 as text" if column == "Nullable(String)" else "",
        ),
        Case(
            f"{what}, double",
            field("double"),
            "Nullable(Float64)",
            tuple((float(v), _float(float(v))) for v in values),
        ),
        Case(f"{what}, string", field("string"), "Nullable(String)", tuple((v, v) for v in values)),
    ]


def _float(value: float) -> str:
    """The shortest text, as ClickHouse writes it."""
    text = repr(value)
    if "e" in text:
        digits, exponent = text.split("e")
        number = int(exponent)
        if 0 <= number < 21:
            return str(int(value))
        return f"{digits.removesuffix('.0')}e{number}"
    return text.removesuffix(".0")


def _nanos(text: str) -> int:
    """Nanoseconds since 1970 of ``2018-06-20 15:13:16.9451042``."""
    whole, _, fraction = text.partition(".")
    gone = datetime.datetime.fromisoformat(whole) - _EPOCH
    return (gone.days * 86_400 + gone.seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _padded(text: str, digits: int) -> str:
    """The text with exactly so many sub-second digits; more are cut off (by the connector)."""
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(digits, '0')[:digits]}" if digits else whole


_MODES = ("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")


def datetimes(what: str, digits: int, *values: str, modes: Iterable[str] = _MODES, iso_column: str = "") -> list[Case]:
    """A date-time without zone in the modes of ``time.precision.mode``. ``digits`` is the source column's."""
    out = []
    for mode in modes:
        if mode == "isostring":
            iso = tuple((v.replace(" ", "T") + "Z", v) for v in values)
            shown = max(digits, 6)
            column = iso_column or f"Nullable(DateTime64({shown}, 'UTC'))"
            pairs = iso if "String" in column else tuple((wire, _padded(v, shown)) for wire, v in iso)
            out.append(Case(f"{what}, {mode}", field("string", TIME + "IsoTimestamp"), column, pairs))
            continue
        if mode == "connect":
            name, unit = CONNECT + "Timestamp", 3
        else:
            unit = {"microseconds": 6, "nanoseconds": 9}.get(mode, 3 if digits <= 3 else 6 if digits <= 6 else 9)
            name = TIME + {3: "Timestamp", 6: "MicroTimestamp", 9: "NanoTimestamp"}[unit]
        held = [v for v in values if unit < 9 or "1678" <= v[:4] <= "2261"]
        out.append(
            Case(
                f"{what}, {mode}",
                field("int64", name),
                f"Nullable(DateTime64({unit}, 'UTC'))",
                tuple((_nanos(v) // 10 ** (9 - unit), _padded(v, unit)) for v in held),
            )
        )
    return out


def dates(what: str, *values: str, modes: Iterable[str] = _MODES) -> list[Case]:
    """A date in the modes of ``time.precision.mode``."""
    out = []
    for mode in modes:
        if mode == "isostring":
            schema, wire = field("string", TIME + "IsoDate"), [f"{v}Z" for v in values]
        else:
            schema = field("int32", (CONNECT if mode == "connect" else TIME) + "Date")
            wire = [(datetime.date.fromisoformat(v) - _EPOCH.date()).days for v in values]
        out.append(Case(f"{what}, {mode}", schema, "Nullable(Date32)", tuple(zip(wire, values, strict=True))))
    return out


def zoned(what: str, *values: str) -> Case:
    """Moments in UTC, sent as texts."""
    pairs = tuple((v.replace(" ", "T") + "Z", _padded(v, 6)) for v in values)
    return Case(what, field("string", TIME + "ZonedTimestamp"), "Nullable(DateTime64(6, 'UTC'))", pairs)


def spatial(what: str, wkb: bytes, *srids: int | None, kind: str = "Geometry") -> Case:
    """A shape in well-known binary, of which that is stored."""
    schema = named(DATA + f"geometry.{kind}", {"wkb": field("bytes", optional=False), "srid": field("int32")})
    pairs = tuple(({"wkb": b64(wkb), "srid": srid}, wkb) for srid in srids)
    return Case(what, schema, "Nullable(String)", pairs, untold="the struct is kept as its JSON")


def _clock(text: str) -> int:
    """Nanoseconds of ``-838:59:59.5``."""
    whole, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    nanos = (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))
    return -nanos if text.startswith("-") else nanos


def times(what: str, digits: int, *values: str, modes: Iterable[str] = _MODES) -> list[Case]:
    """A time of day, or MySQL's span of ±838 hours. The column holds the connector's own ticks."""
    out = []
    for mode in modes:
        if mode == "isostring":
            day = [v for v in values if not v.startswith("-") and v < "24"]
            pairs = tuple((f"{v}Z", f"{v}Z") for v in day)
            out.append(Case(f"{what}, {mode}", field("string", TIME + "IsoTime"), "Nullable(String)", pairs))
            continue
        if mode == "connect":
            schema, unit = field("int32", CONNECT + "Time"), 3
        else:
            adaptive = 3 if digits <= 3 else 6 if digits <= 6 else 9
            unit = {"microseconds": 6, "nanoseconds": 9, "adaptive_time_microseconds": 6}.get(mode, adaptive)
            kind, name = {3: ("int32", "Time"), 6: ("int64", "MicroTime"), 9: ("int64", "NanoTime")}[unit]
            schema = field(kind, TIME + name)
        column = "Nullable(Int32)" if unit == 3 else "Nullable(Int64)"
        # Connect's own Time holds times of day only.
        held = [v for v in values if mode != "connect" or (not v.startswith("-") and v <= "24")]
        ticks = [int(Decimal(_clock(v)) / 10 ** (9 - unit)) for v in held]
        out.append(Case(f"{what}, {mode}", schema, column, tuple((t, str(t)) for t in ticks)))
    return out
