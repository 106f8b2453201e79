"""Kafka keys of documents that the compiled scanner reads; it decides nothing by itself."""

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.decode.json.scanned import Programs, Refused
from ch_sink.decode.mongodb.values import read
from ch_sink.decode.native.documents import KEYS, NIL, STRING, WHOLE, Written, written
from ch_sink.decode.native.program import Keep, Members
from ch_sink.decode.native.scan import NULL, TEXTS, Scan
from ch_sink.types import Converter

__all__ = ["KeyScanner"]

_NUMBER = np.zeros(256, dtype=np.bool_)
_NUMBER[list(b"-0123456789")] = True
"""First bytes of texts that a number may have as well."""


class KeyScanner:
    """Reads ``{"id": "<Extended JSON of _id>"}`` into the key column."""

    def __init__(self, native: CDLL, converter: Converter, *, plain: bool, id_kind: str) -> None:
        """``plain``: the column holds the values' plain JSON without quotes.

        ``id_kind``: what may look like a number has to be of this kind; empty if anything may.
        """
        self._programs = Programs(native, Members({"id": Keep()}, frozenset(("id",)), closed=True))
        self._converter, self._plain, self._id_kind = converter, plain, id_kind

    def read(self, payloads: Sequence[bytes]) -> pa.Array | None:
        """The keys' column; None if they have to be read one by one."""
        return self._programs.read(payloads, self._column)

    def _column(self, found: Scan) -> pa.Array:
        slot = found.program.slots["id",]
        if not found.only(slot, TEXTS) or found.kinds(slot) & NULL:
            raise Refused
        texts = written(found, slot, values=True)
        kinds = int(texts.seen[0])
        if texts.refused.any() or kinds & NIL:
            raise Refused
        if not self._plain:
            values: list[Any] = read(msgspec.json.decode(texts.literals(0)))
            return self._converter.convert(values).array
        if kinds & ~KEYS or not self._one_kind(texts, kinds):
            raise Refused
        return texts.field(0, self._converter.arrow)

    def _one_kind(self, texts: Written, kinds: int) -> bool:
        """Whether surely no key is a text where others are numbers, or the other way round."""
        if self._id_kind == "text":
            return not kinds & WHOLE
        return self._id_kind != "number" or not kinds & STRING or not _NUMBER[texts.begins(0, STRING)].any()
