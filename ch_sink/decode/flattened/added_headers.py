"""Added fields that came as record headers (``add.headers`` of ``ExtractNewRecordState``)."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args

import msgspec

from ch_sink.decode.flattened.added_fields import Added
from ch_sink.errors import DecodeError
from ch_sink.model.change import Headers

__all__ = ["HeaderFields"]


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
