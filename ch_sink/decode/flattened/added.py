"""The fields that ``ExtractNewRecordState`` adds to flattened rows and to their headers, by name."""

from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import Any, get_args

import msgspec

from ch_sink.errors import DecodeError
from ch_sink.model.change import Headers
from ch_sink.sources import FLATTENED, SOURCES, Flattened, source_for
from ch_sink.types import Converter
from ch_sink.types.arrow import INTEGERS, arrow_of
from ch_sink.types.chtype import parse_type
from ch_sink.types.converter import PerValue
from ch_sink.types.scalars import flag, flag_text

__all__ = ["DELETED", "Added", "HeaderFields", "block_types", "deleted_flag", "flat_connector", "flattened"]

DELETED = "__deleted"
"""This name never has a prefix: ``"true"`` for a deleted row."""
_BLOCK: dict[str, Any] = {
    "connector": str | None,
    "name": str | None,
    "ts_ms": int | None,
    "snapshot": str | bool | None,
}
_POSITION = {f.name for source in SOURCES for f in msgspec.structs.fields(source.wire)}
_OTHERS = frozenset(
    """
    id total_order data_collection_order ts_us ts_ns version db schema table query txId xmin thread server_id gtid
    """.split()
)
"""Other added names, which the sink does not use."""


class Added:
    """Reads names of added fields: ``__op``, ``__source_ts_ms``, ``__lsn``, … with the configured prefix."""

    def __init__(self, prefix: str, columns: Collection[str]) -> None:
        """``columns``: the table's source columns. Without a prefix, a field of such a name is only a column."""
        self._prefix = prefix
        self._columns = frozenset(columns)

    def is_added(self, name: str) -> bool:
        """Whether a field was added to the row (a column of the table may nevertheless hold it)."""
        if name == DELETED:
            return True
        if self._prefix:
            return name.startswith(self._prefix)
        return name not in self._columns and (self.role(name) is not None or name.removeprefix("source_") in _OTHERS)

    def role(self, name: str) -> str | None:
        """What the field states: ``op``, ``deleted``, ``event_ts_ms`` or a field of the ``source`` block; else None."""
        if name == DELETED:
            return "deleted"
        if not name.startswith(self._prefix) or (not self._prefix and name in self._columns):
            return None
        rest = name[len(self._prefix) :]
        if rest == "op":
            return "op"
        if rest == "ts_ms":
            return "event_ts_ms"
        field = rest.removeprefix("source_")
        return field if field in _BLOCK or field in _POSITION else None

    def roles(self, names: Iterable[str]) -> dict[str, str]:
        """Role → name of the field that states it; the first of several."""
        out: dict[str, str] = {}
        for name in names:
            role = self.role(name)
            if role is not None:
                out.setdefault(role, name)
        return out


def flat_connector(roles: Collection[str], stated: str = "") -> str:
    """Connector name of events with these added fields: ``flattened:<connector>``, or ``flattened``.

    ``stated``: the connector that a field names; else it is the one most of whose position fields are present.
    """
    if stated:
        return f"{FLATTENED}:{stated}"
    shared = {source: len(set(source.wire.__struct_fields__) & set(roles)) for source in SOURCES}
    best = max(SOURCES, key=lambda source: shared[source])
    return f"{FLATTENED}:{min(best.connectors)}" if shared[best] else FLATTENED


def flattened(connector: str) -> Flattened:
    """The source for a connector name from :func:`flat_connector`."""
    source = source_for(connector)
    assert isinstance(source, Flattened)
    return source


def deleted_flag(column_type: str) -> Converter | None:
    """The converter of ``__deleted`` into an integer or Bool column; None for a column of any other type."""
    target = parse_type(column_type).bare
    if target.name not in INTEGERS and target.name != "Bool":
        return None
    as_flag = bool if target.name == "Bool" else int

    def one(value: Any) -> Any:
        return as_flag(flag_text(value) if isinstance(value, str) else flag(value))

    return PerValue(bool | int | str, arrow_of(target), one, reaction="fail")


def block_types(source: Flattened) -> dict[str, Any]:
    """Types of the roles that make up the ``source`` block of this source."""
    return {**_BLOCK, "event_ts_ms": int | None, **{f.name: f.type for f in msgspec.structs.fields(source.wire)}}


class HeaderFields:
    """Reads the headers that replace fields of an envelope."""

    def __init__(self, prefix: str) -> None:
        # A header without prefix may have another origin; headers never hold columns.
        self._added = Added(prefix, ())
        self._roles: dict[str, str | None] = {}

    def texts(self, headers: Headers | None) -> dict[str, bytes]:
        """Role → bytes of the headers that have one; empty for most records."""
        out: dict[str, bytes] = {}
        for name, raw in headers or ():
            if name not in self._roles:
                self._roles[name] = self._added.role(name)
            role = self._roles[name]
            if role is not None:
                out.setdefault(role, b"null" if raw is None else raw)
        return out

    def values(self, texts: Mapping[str, bytes], types: Mapping[str, Any]) -> dict[str, Any]:
        """The header texts as values of these types; roles without a type are left out. Raises DecodeError.

        Headers are plain texts (Connect's ``SimpleHeaderConverter``) or JSON, with or without schema.
        """
        return {role: _value(role, raw, types[role]) for role, raw in texts.items() if role in types}


def _value(role: str, raw: bytes, wire: Any) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the header for {role!r} is not UTF-8: {error}") from error
    try:
        found: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        found = text
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    if found is None:
        return None
    kinds = get_args(wire) if isinstance(wire, UnionType) else (wire,)
    if str in kinds and not isinstance(found, str):
        return text
    try:
        return msgspec.convert(found, wire, strict=False)
    except msgspec.ValidationError as error:
        raise DecodeError(f"the header for {role!r}: {error}") from error
