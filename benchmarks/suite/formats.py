"""Changes as records of a topic: JSON with and without schema, Avro, flattened rows, MongoDB documents."""

import base64
import io
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from benchmarks.suite.changes import Change
from benchmarks.suite.rows import Field, Row, RowKind

__all__ = ["Encoder", "Record", "encoder"]

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Record:
    """A record; ``number`` decides its partition."""

    number: int
    key: bytes
    value: bytes | None
    headers: Headers | None = None


@dataclass
class Encoder:
    """Turns changes into records."""

    key: Callable[[Row], bytes]
    value: Callable[[Change, int], bytes]
    schemas: Mapping[int, str] = field(default_factory=dict)
    """Avro schemas by id."""

    def records(self, kind: RowKind, changes: Iterable[Change]) -> Iterator[Record]:
        """The records of changes; a key change carries the headers that Debezium writes."""
        for at, change in enumerate(changes):
            headers: Headers | None = None
            if change.new_key is not None:
                headers = [("__debezium.newkey", json.dumps(_key(kind, change.new_key)).encode())]
            elif change.old_key is not None:
                headers = [("__debezium.oldkey", json.dumps(_key(kind, change.old_key)).encode())]
            image = change.after if change.after is not None else change.before
            assert image is not None
            yield Record(change.key, self.key(image), self.value(change, at), headers)


def _key(kind: RowKind, key: int) -> Row:
    row = kind.make(key, 0, random.Random(key))
    return {name: row[name] for name in kind.key}


def _source(change: Change, at: int) -> Row:
    ms = 1_795_000_000_000 + at // 10
    return {
        "version": "3.5.0.Final",
        "connector": "mysql",
        "name": "shop",
        "ts_ms": ms,
        "snapshot": "true" if change.snapshot else "false",
        "db": "shop",
        "sequence": None,
        "ts_us": ms * 1000,
        "ts_ns": ms * 10**6,
        "table": "orders",
        "server_id": 223344,
        "gtid": None,
        "file": f"binlog.{3 + at // 500_000:06d}",
        "pos": 4_000 + at * 310,
        "row": 0,
        "thread": 42,
        "query": None,
    }


def _postgres(change: Change, at: int) -> Row:
    lsn = 24_000_000 + at * 310
    source = {n: v for n, v in _source(change, at).items() if n not in ("server_id", "gtid", "file", "pos", "row")}
    return source | {
        "connector": "postgresql",
        "schema": "public",
        "sequence": f'["{lsn - 40}","{lsn}"]',
        "txId": 700 + at,
        "lsn": lsn,
        "xmin": None,
    }


def _envelope(change: Change, at: int, block: Callable[[Change, int], Row] = _source) -> Row:
    source = block(change, at)
    return {
        "before": change.before,
        "after": change.after,
        "source": source,
        "transaction": None,
        "op": change.op,
        "ts_ms": source["ts_ms"] + 100,
        "ts_us": source["ts_us"] + 100_000,
        "ts_ns": source["ts_ns"] + 100_000_000,
    }


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_BLOCK = (
    ("version", "string"),
    ("connector", "string"),
    ("name", "string"),
    ("ts_ms", "int64"),
    ("snapshot", "string"),
    ("db", "string"),
    ("sequence", "string"),
    ("ts_us", "int64"),
    ("ts_ns", "int64"),
    ("table", "string"),
    ("server_id", "int64"),
    ("gtid", "string"),
    ("file", "string"),
    ("pos", "int64"),
    ("row", "int32"),
    ("thread", "int64"),
    ("query", "string"),
)
_TAIL = (("op", "string"), ("ts_ms", "int64"), ("ts_us", "int64"), ("ts_ns", "int64"))


def _declared(one: Field) -> Row:
    found: Row = {"type": one.connect, "optional": one.optional, "field": one.name}
    if one.logical:
        found |= {"name": one.logical, "version": 1}
    if one.scale is not None:
        found["parameters"] = {"scale": str(one.scale), "connect.decimal.precision": "12"}
    return found


def _connect_schema(kind: RowKind) -> str:
    image = {"type": "struct", "fields": [_declared(f) for f in kind.fields], "optional": True, "name": "shop.Value"}
    block = [{"type": t, "optional": n not in ("connector", "name"), "field": n} for n, t in _BLOCK]
    fields = [
        {**image, "field": "before"},
        {**image, "field": "after"},
        {"type": "struct", "fields": block, "optional": False, "name": "io.debezium.connector.mysql.Source"}
        | {"field": "source"},
        {"type": "string", "optional": True, "field": "transaction"},
        *({"type": t, "optional": n != "op", "field": n} for n, t in _TAIL),
    ]
    return json.dumps(
        {"type": "struct", "fields": fields, "optional": False, "name": "shop.Envelope", "version": 2},
        separators=(",", ":"),
    )


_AVRO = {"int16": "int", "int32": "int", "int64": "long"}


def _avro_type(one: Field) -> Any:
    found: Any = _AVRO.get(one.connect, one.connect)
    if one.logical:
        found = {"type": found, "connect.name": one.logical, "connect.version": 1}
        if one.scale is not None:
            found |= {"logicalType": "decimal", "scale": one.scale, "precision": 12}
            found["connect.parameters"] = {"scale": str(one.scale), "connect.decimal.precision": "12"}
    return ["null", found] if one.optional else found


def _avro(kind: RowKind) -> Encoder:
    row = {"type": "record", "name": "Value", "fields": [{"name": f.name, "type": _avro_type(f)} for f in kind.fields]}
    block = [{"name": n, "type": ["null", _AVRO.get(t, t)]} for n, t in _BLOCK if n not in ("connector", "name")]
    block = [{"name": "connector", "type": "string"}, {"name": "name", "type": "string"}, *block]
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": block}},
        {"name": "op", "type": "string"},
        *({"name": n, "type": ["null", "long"]} for n, _ in _TAIL[1:]),
    ]
    value = {"type": "record", "name": "Envelope", "namespace": "shop", "fields": fields}
    key = {
        "type": "record",
        "name": "Key",
        "namespace": "shop",
        "fields": [{"name": n, "type": _avro_type(kind.by_name[n])} for n in kind.key],
    }
    parsed_key, parsed_value = fastavro.parse_schema(dict(key)), fastavro.parse_schema(json.loads(json.dumps(value)))
    binary = [f.name for f in kind.fields if f.connect == "bytes"]

    def plain(image: Row | None) -> Row | None:
        return None if image is None else image | {n: base64.b64decode(image[n]) for n in binary if image[n]}

    def framed(number: int, schema: Any, datum: Row) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, datum)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()

    for one in binary:  # values are bytes already: fastavro would take decimals
        _undeclare(parsed_value, one)
    return Encoder(
        lambda image: framed(1, parsed_key, {n: image[n] for n in kind.key}),
        lambda change, at: framed(
            2,
            parsed_value,
            _envelope(change, at) | {"before": plain(change.before), "after": plain(change.after)},
        ),
        {1: json.dumps(key), 2: json.dumps(value)},
    )


def _undeclare(node: Any, name: str) -> None:
    """Take the logical type from a field, so that its bytes are written as they are."""
    if isinstance(node, list):
        for one in node:
            _undeclare(one, name)
    elif isinstance(node, dict):
        for one in node.get("fields", ()):
            kinds = one["type"] if isinstance(one["type"], list) else [one["type"]]
            for kind in kinds:
                if one["name"] == name and isinstance(kind, dict):
                    kind.pop("logicalType", None)
                _undeclare(kind, name)


def _flattened(change: Change, at: int) -> bytes:
    image = change.after if change.after is not None else change.before
    assert image is not None
    source = _source(change, at)
    added = {"__deleted": "true" if change.op == "d" else "false", "__op": change.op, "__connector": "mysql"}
    return _text(image | added | {f"__source_{n}": source[n] for n in ("file", "pos", "row", "ts_ms")})


def _oid(row: Row) -> dict[str, str]:
    return {"$oid": f"{row['id']:024x}"}


def _document(change: Change, at: int) -> bytes:
    ms = 1_795_000_000_000 + at // 10
    source = {"connector": "mongodb", "name": "shop", "ts_ms": ms, "snapshot": "false", "db": "shop"}
    source |= {"rs": "rs0", "collection": "orders", "ord": at % 10 + 1}

    def image(row: Row | None) -> str | None:
        return None if row is None else json.dumps({"_id": _oid(row)} | {n: v for n, v in row.items() if n != "id"})

    return _text({"before": None, "after": image(change.after), "source": source, "op": change.op, "ts_ms": ms})


def encoder(form: str, kind: RowKind) -> Encoder:
    """The encoder of one format. Raises KeyError for an unknown one."""

    def key(image: Row) -> bytes:
        return _text({n: image[n] for n in kind.key})

    schema = _connect_schema(kind)
    return {
        "json": lambda: Encoder(key, lambda change, at: _text(_envelope(change, at))),
        "postgres": lambda: Encoder(key, lambda change, at: _text(_envelope(change, at, _postgres))),
        "json with schema": lambda: Encoder(
            key,
            lambda change, at: b'{"schema":%s,"payload":%s}' % (schema.encode(), _text(_envelope(change, at))),
        ),
        "avro": lambda: _avro(kind),
        "flattened": lambda: Encoder(key, _flattened),
        "documents": lambda: Encoder(lambda image: _text({"id": json.dumps(_oid(image))}), _document),
    }[form]()
