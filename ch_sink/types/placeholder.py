"""The unavailable-value placeholder in all forms in which Debezium sends it.

Forms: the text; its bytes (bytea; base64 or hex where the connector writes binary as text); a one-element
array of either; its byte values as an array of integers; a map or JSON of it to itself (hstore); an array of
the UUID made from it (``UUID.nameUUIDFromBytes``).
"""

import base64
import hashlib
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

__all__ = ["Placeholder", "placeholder"]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder text and what it looks like in columns of each kind."""

    text: str
    raw: bytes
    texts: tuple[bytes, ...]
    """Its forms in a column that is sent as text."""
    codes: tuple[int, ...]
    uuid: str

    def is_text(self, value: Any) -> bool:
        return isinstance(value, str) and value.encode("utf-8", "surrogatepass") in self.texts

    def is_bytes(self, value: Any) -> bool:
        return bool(value == self.raw)

    def is_array(self, value: Any) -> bool:
        """Whether an array's literal is the placeholder."""
        if len(value) == 1:
            only = value[0]
            return bool(only == self.raw or only == self.text or only == self.uuid or self.is_text(only))
        return len(value) == len(self.codes) and tuple(value) == self.codes

    def is_map(self, value: Any) -> bool:
        pairs = list(value.items()) if isinstance(value, dict) else list(value)
        return len(pairs) == 1 and tuple(pairs[0]) == (self.text, self.text)

    def is_json(self, value: Any) -> bool:
        """Whether a piece of JSON text (bytes, or ``msgspec.Raw``) is one of the forms."""
        text = bytes(value)
        if len(text) > 8 * len(self.raw) + 16:
            return False
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        if isinstance(found, str):
            return self.is_text(found)
        if isinstance(found, dict):
            return self.is_map(found)
        return isinstance(found, list) and self.is_array(found)


@lru_cache(maxsize=64)
def placeholder(text: str) -> Placeholder:
    """The forms of a placeholder text."""
    raw = text.encode()
    digest = bytearray(hashlib.md5(raw, usedforsecurity=False).digest())
    digest[6] = (digest[6] & 0x0F) | 0x30
    digest[8] = (digest[8] & 0x3F) | 0x80
    quoted = msgspec.json.encode(text)
    return Placeholder(
        text=text,
        raw=raw,
        texts=(
            raw,
            base64.b64encode(raw),
            base64.urlsafe_b64encode(raw),
            raw.hex().encode(),
            b"{" + quoted + b":" + quoted + b"}",
        ),
        codes=tuple(raw),
        uuid=str(uuid.UUID(bytes=bytes(digest))),
    )
