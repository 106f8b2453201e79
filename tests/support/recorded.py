"""Recorded streams of real connectors and the tables that are to equal their sources."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from ch_sink.clickhouse import Client
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.policy import policy_of
from ch_sink.types.connect import RowSchema
from tests.support.fixtures import TruthTable, as_records, read_truth, registry, topic_of, topics


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell that cannot equal the truth."""

    source: str
    table: str
    column: str
    reason: str
    keys: tuple[tuple[str, ...], ...] = ()
    """Rows concerned, by the source's key texts; empty for all rows."""
    streams: tuple[str, ...] = ()
    """Endings of the streams concerned; empty for all."""


_DEFAULTED = "NULL becomes the column's default unless the converter has replace.null.with.default=false"
_GENERATED = "generated columns are in snapshot rows only"
CHANGED = (
    Cell("mariadb", "nn", "o", _DEFAULTED),
    Cell("postgres", "nn", "o", _DEFAULTED),
    Cell("mariadb", "all_types", "c_ubi", "BIGINT UNSIGNED above 2^63 arrives negative", (("1", "1"), ("3", "1"))),
    Cell("mariadb", "oddkey", "u", "BIGINT UNSIGNED above 2^63 arrives negative"),
    Cell("mariadb", "all_types", "c_enum", "an enum label with a comma gets a backslash", (("1", "77"),)),
    Cell("mariadb", "odd", "u", "a UUID that ends in byte 00 arrives shifted"),
    Cell("mariadb", "all_types", "c_dt0", "year 0001 arrives as 2001", (("1", "1"),)),
    Cell("postgres", "all_types", "c_ltext_gen", _GENERATED),
    Cell("postgres", "all_types", "c_interval", "interval is in µs with months approximated"),
    Cell("postgres", "all_types", "c_timetz", "timetz is shifted to UTC"),
    Cell("postgres", "special", "n", "numeric NaN and infinity arrive as null in precise mode"),
)


def select_list(truth: TruthTable, types: dict[str, str]) -> str:
    """SQL that gives each column as text: bytes as hex, arrays and tuples as JSON."""
    parts = []
    for column in truth.columns:
        name, kind = column["name"], types[column["name"]]
        quoted = "`" + name.replace("`", "\\`") + "`"
        if _is_binary(column["type"]) and "String" in kind:
            parts.append(f"hex({quoted})" if "Nullable" not in kind else f"if({quoted} IS NULL, NULL, hex({quoted}))")
        elif "Array" in kind or "Tuple" in kind or kind.startswith(("Map", "Point", "Nullable(Point")):
            parts.append(f"if({quoted} IS NULL, NULL, toJSONString({quoted}))")
        else:
            parts.append(f"toString({quoted})")
    return ", ".join(f"{p} AS c{i}" for i, p in enumerate(parts))


def differences(
    source: str, stream: str, truth: TruthTable, types: dict[str, str], rows: list[tuple[str | None, ...]]
) -> list[str]:
    """What differs, one line each; empty when the table equals the truth. ``rows`` are of `select_list`."""
    names = truth.names
    exempt = {
        c.column: c for c in CHANGED if c.source == source and c.table == truth.name and _concerns(c.streams, stream)
    }
    keys = truth.key or names
    at = [names.index(k) for k in keys]

    def key_of(values: list[Any]) -> tuple[str, ...]:
        mine = [values[i].normalize() if isinstance(values[i], Decimal) else values[i] for i in at]
        return tuple(
            "?" if names[i] in exempt and not exempt[names[i]].keys else repr(v) for i, v in zip(at, mine, strict=True)
        )

    wanted = sorted(
        (
            (key_of(v := [_truth(c["type"], t) for c, t in zip(truth.columns, row, strict=True)]), v, row)
            for row in truth.rows
        ),
        key=lambda x: x[0],
    )
    found = sorted(
        (
            (key_of(v := [_found(c["type"], types[c["name"]], t) for c, t in zip(truth.columns, row, strict=True)]), v)
            for row in rows
        ),
        key=lambda x: x[0],
    )
    out = []
    if [k for k, _, _ in wanted] != [k for k, _ in found]:
        missing = [k for k, _, _ in wanted if k not in {f for f, _ in found}]
        extra = [k for k, _ in found if k not in {w for w, _, _ in wanted}]
        out.append(f"{len(wanted)} rows wanted, {len(found)} found; missing {missing[:5]}, extra {extra[:5]}")
        return out
    for (key, values, texts), (_, mine) in zip(wanted, found, strict=True):
        source_key = tuple(str(texts[i]) for i in at)
        for name, want, have in zip(names, values, mine, strict=True):
            cell = exempt.get(name)
            if cell is not None and (not cell.keys or source_key in cell.keys):
                continue
            if want is None and types[name].startswith("Array("):
                want = []  # arrays: empty_for_null
            if not _same(want, have):
                out.append(f"{truth.name} {key} {name}: source {want!r}, table {have!r}")
    return out


def _concerns(endings: tuple[str, ...], stream: str) -> bool:
    return not endings or stream.endswith(endings)


def _is_binary(kind: str) -> bool:
    return bool(re.match(r"(binary|varbinary|(tiny|medium|long)?blob|bytea)\b", kind))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.floating) and isinstance(b, np.floating):
        return bool(a == b or (np.isnan(a) and np.isnan(b)))
    return bool(a == b)


def _truth(kind: str, text: str | None) -> Any:
    return None if text is None else _reader(kind)(text)


def _found(kind: str, clickhouse: str, text: str | None) -> Any:
    if text is None:
        return None
    if kind == "hstore":
        return json.loads(text)
    if kind.endswith("[]"):
        found = json.loads(text)
        items = found["items"] if isinstance(found, dict) else found
        return [None if i is None else _reader(kind[:-2])(_plain(i)) for i in items]
    if kind == "point":
        found = json.loads(text)
        return tuple(float(v) for v in (list(found.values())[:2] if isinstance(found, dict) else found))
    if kind.startswith(("time", "interval")) and not kind.startswith("timestamp"):
        return _time_number(kind, clickhouse, text)
    if _is_binary(kind):
        return text.lower()
    if kind.startswith("bit"):
        return int({"true": "1", "false": "0"}.get(text, text))
    return _reader(kind)(text)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _time_number(kind: str, clickhouse: str, text: str) -> Any:
    if "with time zone" in kind or "String" in clickhouse:
        return text
    if "Int32" in clickhouse:
        return int(text) * 1000
    return int(text) if "Int64" in clickhouse else _micros(text)


def _micros(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    return sign * int((int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds)) * 1_000_000)


def _moment(text: str) -> str:
    """Date and time without trailing zeros, zone or fraction noise."""
    text = text.replace("T", " ").removesuffix("Z").removesuffix("+00")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _reader(kind: str) -> Callable[[str], Any]:
    if kind.endswith("[]"):
        inner = _reader(kind[:-2])
        return lambda text: [None if i is None else inner(i) for i in _array(text)]
    for pattern, reader in _READERS:
        if re.match(pattern, kind):
            return reader
    return str


def _array(text: str) -> list[str | None]:
    out: list[str | None] = []
    for quoted, bare in re.findall(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', text[1:-1]):
        if bare:
            out.append(None if bare == "NULL" else bare)
        else:
            out.append(re.sub(r"\\(.)", r"\1", quoted))
    return out


def _hstore(text: str) -> dict[str, str | None]:
    pairs = re.findall(r'"((?:[^"\\]|\\.)*)"=>(NULL|"((?:[^"\\]|\\.)*)")', text)
    return {k: None if raw == "NULL" else v for k, raw, v in pairs}


def _bits(text: str) -> int:
    return int(text, 2) if text else 0


def _point(text: str) -> tuple[float, ...]:
    return tuple(float(v) for v in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", text))


_READERS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (
        r"(tinyint|smallint|mediumint|int|integer|bigint|oid|year)\b",
        lambda t: int({"true": "1", "false": "0"}.get(t, t)),
    ),
    (r"(bool|boolean)\b", lambda t: t in ("true", "1", "t")),
    (r"(decimal|numeric)", Decimal),
    (r"money", lambda t: Decimal(re.sub(r"[$,]", "", t))),
    (r"(float|real)\b", np.float32),
    (r"double", np.float64),
    (r"(datetime|timestamp)", _moment),
    (r"time(\(\d\))? with time zone", str),
    (r"time", _micros),
    (r"bit", _bits),
    (r"(binary|varbinary|(tiny|medium|long)?blob|bytea)", lambda t: t.removeprefix("\\x").lower()),
    (r"hstore", _hstore),
    (r"point", _point),
    (r"inet", lambda t: re.sub(r"(?<=\.\d)/32$|/128$", "", t)),  # the cast to text adds the whole mask
    (r"(character|bpchar)\(", lambda t: t.rstrip(" ")),
)


STREAMS = [
    f"{db}-{kind}"
    for db in ("mariadb", "postgres")
    for kind in ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain", "avro")
]


KEYLESS = {"nopk", "nopk_d"}


POLICY = policy_of(truncate="apply", on_bad_record="fail")


def tables(stream: str) -> list[str]:
    known = read_truth(stream.split("-")[0])
    names = [t.rpartition(".")[2] for t in topics(stream)]
    plain_truncate = {"tr"} if stream.endswith("json_plain") else set()  # the recording lacks its truncate
    return sorted(n for n in names if n in known and n not in plain_truncate)


CASES = [(stream, table) for stream in STREAMS for table in tables(stream)]


def one_encoding_each(cases: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each table of either database once, all encodings among them."""
    shuffled = random.Random(0).sample(cases, len(cases))
    return list({(stream.split("-")[0], table): (stream, table) for stream, table in shuffled}.values())


def equal(client: Client, database: str, source: str, stream: str, table: str) -> list[str]:
    truth = read_truth(source)[table]
    types = {
        r["name"]: r["type"]
        for r in client.rows(
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String}",
            {"d": database, "t": table},
        )
    }
    rows = client.rows(f"SELECT {select_list(truth, types)} FROM {database}.`{table}_current`")
    return differences(source, stream, truth, types, [tuple(r.values()) for r in rows])


def at_the_snapshot(stream: str, table: str) -> RowSchema:
    """What ``init`` found when there was nothing but the snapshot."""
    first = topics(stream)[topic_of(stream, table)][0]
    found = sample_schema(as_records([first]), registry=registry(stream))
    assert found is not None
    return found
