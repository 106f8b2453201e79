"""Aliases for field names that msgspec cannot look for: names with a quote, a backslash or a control character.

msgspec compares names without escaping them and refuses to make a Struct with such a name. A payload whose row images
may have one is rewritten before it is decoded: each of these names becomes its alias. Tables without such names skip
this step.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

__all__ = ["alias", "object_decoder", "row_decoder", "with_names"]

_UNFIT = re.compile(r'["\\\x00-\x1f]')
_MARK = "\x7f"
_PRIVATE = 0xF000
"""First of the private-use characters that replace the unsupported ones, after the mark."""
_TO_ALIAS = {code: _PRIVATE + code for code in (*range(32), ord('"'), ord("\\"))}
_FROM_ALIAS = {private: code for code, private in _TO_ALIAS.items()}
_ALIASES = re.compile("|".join(map(chr, _FROM_ALIAS)))
_IMAGES = ("before", "after")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def alias(name: str) -> str:
    """The name by which a field is decoded: its own, unless msgspec cannot look that up."""
    return _MARK + name.translate(_TO_ALIAS) if _UNFIT.search(name) else name


def with_names(text: str) -> str:
    """A decoder's message with aliases replaced by the fields' own names."""
    return text.replace(_MARK, "").translate(_FROM_ALIAS) if _MARK in text and _ALIASES.search(text) else text


def row_decoder(decode: Callable[[bytes], Any], images: Iterable[type[msgspec.Struct]]) -> Callable[[bytes], Any]:
    """A decoder of envelopes whose row images are these Structs, some of whose fields may have aliases."""
    if not any(_has_alias(image) for image in images):
        return decode
    return lambda payload: decode(_envelope(payload))


def object_decoder(decode: Callable[[bytes], Any], struct: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    """A decoder of JSON objects of this Struct, some of whose fields may have aliases."""
    if not _has_alias(struct):
        return decode
    return lambda payload: decode(_object(payload))


def _has_alias(struct: type[msgspec.Struct]) -> bool:
    return any(name.startswith(_MARK) and _ALIASES.search(name) for name in struct.__struct_encode_fields__)


def _envelope(payload: bytes) -> bytes:
    if b"\\" not in payload:
        return payload  # JSON writes each of these characters with a backslash
    try:
        members = _fields.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return payload  # the typed decoder says what is wrong
    return msgspec.json.encode(
        {name: msgspec.Raw(_object(bytes(raw))) if name in _IMAGES else raw for name, raw in members.items()}
    )


def _object(payload: bytes) -> bytes:
    if b"\\" not in payload:
        return payload
    try:
        members = _fields.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return payload
    return msgspec.json.encode({alias(name): raw for name, raw in members.items()})
