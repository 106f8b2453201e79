"""``ExtractNewRecordState`` and ``ByLogicalTableRouter`` over JSON records: what Debezium's transformations make.

Written from their sources, and held against records that the real ones made (tests/fixtures/flattened).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.support.fixtures import Recorded

_TRANSACTION = ("id", "total_order", "data_collection_order")
_TOP = ("op", "ts_ms", "ts_us", "ts_ns")
Legacy = Literal["none", "drop", "rewrite"]


@dataclass(frozen=True, slots=True)
class _Reference:
    """One entry of ``add.fields`` or ``add.headers``: ``op``, ``lsn``, ``source.ts_ms``, ``op:operation``."""

    struct: str | None
    field: str
    name: str

    @staticmethod
    def of(text: str, prefix: str) -> "_Reference":
        path, _, renamed = text.partition(":")
        struct, dot, field = path.rpartition(".")
        name = prefix + (renamed or (f"{struct}_{field}" if dot else field))
        if not dot:
            struct = "transaction" if field in _TRANSACTION else "" if field in _TOP else "source"
        return _Reference(struct or None, field, name)


@dataclass(frozen=True, slots=True)
class Flatten:
    """The transformation with its options. ``mode`` is ``delete.tombstone.handling.mode``, empty for the older two."""

    mode: Literal["", "drop", "tombstone", "rewrite", "rewrite-with-tombstone"] = "tombstone"
    drop_tombstones: bool = True
    delete_handling: Legacy = "drop"
    add_fields: Sequence[str] = ()
    add_headers: Sequence[str] = ()
    prefix: str = "__"
    headers_prefix: str = "__"

    def apply(self, records: Sequence[Recorded]) -> list[Recorded]:
        """The records that are left, at their own offsets (those dropped leave gaps)."""
        return [out for record in records if (out := self.one(record)) is not None]

    def one(self, record: Recorded) -> Recorded | None:
        if record.value is None:
            dropped = self.mode in ("drop", "tombstone", "rewrite") if self.mode else self.drop_tombstones
            return None if dropped else replace(record, headers=(*record.headers, *self._headers(None)))
        found = json.loads(record.value)
        enveloped = found.keys() == {"schema", "payload"}
        schema, event = (found["schema"], found["payload"]) if enveloped else (None, found)
        if not ("op" in event and "source" in event and "after" in event):
            return record
        if event["before"] is None and event["after"] is None:
            return None  # a truncate
        record = replace(record, headers=(*record.headers, *self._headers(event)))
        rewrites = self.mode.startswith("rewrite") if self.mode else self.delete_handling == "rewrite"
        deleted = event["after"] is None
        if deleted and not rewrites:
            drops = self.mode == "drop" or (not self.mode and self.delete_handling == "drop")
            return None if drops else replace(record, value=self._null(schema))
        image = dict(event["before" if deleted else "after"])
        types = {**_image_schema(schema), "optional": False} if schema is not None else None
        if rewrites:
            image["__deleted"] = "true" if deleted else "false"
            if types is not None:
                types["fields"].append({"type": "string", "optional": True, "field": "__deleted"})
        for reference in (_Reference.of(text, self.prefix) for text in self.add_fields):
            holder = event if reference.struct is None else event.get(reference.struct)
            if not _declares(schema, event, reference):
                continue
            image[reference.name] = None if holder is None else holder.get(reference.field)
            if types is not None:
                types["fields"].append(_optional(schema, reference))
        body = image if types is None else {"schema": types, "payload": image}
        return replace(record, value=_text(body))

    def _null(self, schema: Any) -> bytes | None:
        """A delete's null: its schema is still there, so that Connect's JsonConverter writes it out."""
        return b"null" if schema is None else _text({"schema": _image_schema(schema), "payload": None})

    def _headers(self, event: Any) -> list[tuple[str, bytes | None]]:
        out: list[tuple[str, bytes | None]] = []
        for reference in (_Reference.of(text, self.headers_prefix) for text in self.add_headers):
            if event is None:
                if reference.field == "op":
                    out.append((reference.name, b"d"))
                continue
            holder = event if reference.struct is None else event.get(reference.struct)
            if reference.struct is None or (isinstance(holder, dict) and reference.field in holder):
                value = None if holder is None else holder.get(reference.field)
                out.append((reference.name, None if value is None else _plain(value)))
        return out


def route(
    records: Sequence[Recorded], identifier: str, *, field: str = "__dbz__physicalTableIdentifier"
) -> list[Recorded]:
    """What ``ByLogicalTableRouter`` makes of a physical table's records: the key names the table."""
    out = []
    for record in records:
        if record.key is None:
            out.append(record)
            continue
        key = json.loads(record.key)
        if key.keys() == {"schema", "payload"}:
            key["payload"][field] = identifier
            key["schema"]["fields"].append({"type": "string", "optional": False, "field": field})
        else:
            key[field] = identifier
        out.append(replace(record, key=_text(key)))
    return out


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _plain(value: Any) -> bytes:
    """A value as Connect's SimpleHeaderConverter writes it."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _image_schema(schema: Any) -> Any:
    found = next(f for f in schema["fields"] if f["field"] == "after")
    out = {name: value for name, value in found.items() if name != "field"}
    out["fields"] = list(found["fields"])
    return out


def _member(schema: Any, reference: _Reference) -> Any:
    fields = schema["fields"]
    if reference.struct is not None:
        fields = next((f for f in fields if f["field"] == reference.struct), {"fields": []})["fields"]
    return next((f for f in fields if f["field"] == reference.field), None)


def _declares(schema: Any, event: Any, reference: _Reference) -> bool:
    if schema is not None:
        return _member(schema, reference) is not None
    holder = event if reference.struct is None else event.get(reference.struct)
    return holder is None or reference.field in holder


def _optional(schema: Any, reference: _Reference) -> Any:
    found = {n: v for n, v in _member(schema, reference).items() if n in ("type", "name", "version", "parameters")}
    return {**found, "optional": True, "field": reference.name}


POSITION = {"mariadb": ("file", "pos", "row"), "postgres": ("lsn", "sequence")}


def transformation(source: str, mode: str) -> Flatten:
    told = ("op", *(f"source.{name}" for name in (*POSITION[source], "ts_ms")))
    if mode == "tombstone":
        return Flatten("tombstone", add_headers=told)
    return Flatten("rewrite-with-tombstone", add_fields=told)
