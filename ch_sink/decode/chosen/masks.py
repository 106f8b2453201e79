"""Masks: what is stored instead of a value's text. Equal values have equal masks; null stays null."""

import hashlib
import hmac
from collections.abc import Callable

import pyarrow as pa

__all__ = ["masked", "masked_text"]

_REDACTED = b"***"


def masked(column: pa.Array, kind: str, key: str = "") -> pa.Array:
    """A column of text (Arrow binary) with each value masked. Every distinct value is hashed once."""
    coded = column.dictionary_encode() if not isinstance(column, pa.DictionaryArray) else column
    function = _function(kind, key)
    texts = pa.array(map(function, coded.dictionary.to_pylist()), pa.binary())
    return texts.take(coded.indices)


def masked_text(text: str, kind: str, key: str = "") -> str:
    """One value masked."""
    return _function(kind, key)(text.encode()).decode()


def _function(kind: str, key: str) -> Callable[[bytes], bytes]:
    if kind == "redact":
        return lambda _: _REDACTED
    if kind == "hmac-sha256":
        secret = key.encode()
        return lambda text: hmac.digest(secret, text, "sha256").hex().encode()
    made = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}[kind]
    return lambda text: made(text).hexdigest().encode()
