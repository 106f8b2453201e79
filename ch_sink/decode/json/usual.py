"""Decoding for topics whose source blocks hardly differ: their texts are compared with known ones instead of copied.

Such a decoder accepts some of the payloads that the layout's own accepts, with equal results. If one is not among them,
the caller decodes all by the layout's own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Usual"]

_MOST = 4
"""Different texts of a field that are expected together."""
_PATIENCE = 3
"""How often in a row the expectation may fail before it is given up."""

Make = Callable[[dict[str, Any]], Callable[[bytes], Any]]
"""Makes a decoder whose source block has these types in place of the general ones, by field."""


class Usual:
    """The decoder that expects the texts of earlier source blocks."""

    def __init__(self, make: Make, fixed: dict[str, Any], fields: Mapping[str, bool]) -> None:
        """``fixed``: types that are expected from the start. ``fields``: texts that repeat, and if they may be null."""
        self._make, self._fixed, self._fields = make, fixed, fields
        self._decode: Callable[[bytes], Any] | None = None
        self._failures = 0

    def decode(self, payloads: list[bytes]) -> list[Any] | None:
        """The payloads' Structs; None if they have to be decoded otherwise."""
        if self._decode is None:
            return None
        try:
            rows = list(map(self._decode, payloads))
        except (msgspec.DecodeError, ValueError, RecursionError):
            self._failures += 1
            self._decode = None
            return None
        self._failures = 0
        return rows

    def learn(self, rows: list[Any]) -> None:
        """Expect the texts of these rows' blocks from now on."""
        if self._decode is not None or self._failures > _PATIENCE or len(rows) < 2:
            return
        blocks = [row.source for row in rows if row.source is not None]
        types = dict(self._fixed)
        for field, null in self._fields.items():
            texts = {getattr(block, field) for block in blocks[-1000:]}
            texts.discard(None)
            if 0 < len(texts) <= _MOST:
                known: Any = Literal[tuple(sorted(texts))]
                types[field] = known | None if null else known
        self._decode = self._make(types)
