"""Kafka keys of one topic, typed as the target's columns."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.isolate import of_record
from ch_sink.decode.key_layouts import KeyLayouts
from ch_sink.decode.mongodb import DocumentKeys
from ch_sink.decode.mongodb.document_keys import IdKind
from ch_sink.errors import DecodeError
from ch_sink.model.profile import TopicProfile
from ch_sink.types import arrow_type
from ch_sink.types.chtype import parse_type

__all__ = ["KeyReader"]


class KeyReader:
    """Reads the keys of a topic whose key columns are those of a profile."""

    def __init__(
        self, layouts: KeyLayouts, envelopes: Envelopes, profile: TopicProfile, documents: DocumentKeys | None = None
    ) -> None:
        """``documents``: reads the topic's keys if its rows are documents."""
        self._layouts, self._envelopes, self._profile = layouts, envelopes, profile
        self._documents = documents
        self.columns = profile.key_columns
        """Names of the key's columns, in the key's order; empty if they are not known."""
        types = {name: layouts.column(name).type for name in self.columns}
        self.types: list[pa.DataType] = [arrow_type(declared) for declared in types.values()]
        """Arrow types of the key's columns."""
        self.never_null = [name for name, declared in types.items() if not parse_type(declared).nullable]
        """The key's columns that cannot hold null."""

    @property
    def of_documents(self) -> bool:
        """Whether the keys are those of documents."""
        return self._documents is not None

    def read(self, keys: list[bytes]) -> list[pa.Array]:
        """The key's columns, in the order of :attr:`columns`. Raises DecodeError if a key cannot be read."""
        if not keys:
            return [pa.nulls(0, found) for found in self.types]
        groups = self._envelopes.split(keys)
        if len(groups) == 1 and groups[0][1] is None:
            return self._group(groups[0][0], groups[0][2])
        order: list[int] = []
        parts: list[list[pa.Array]] = []
        for framed, places, payloads in groups:
            order.extend(places if places is not None else range(len(keys)))
            parts.append(self._group(framed, payloads))
        where = pa.array(_inverse(order))
        return [pa.concat_arrays(column).take(where) for column in zip(*parts, strict=True)]

    def values(self, keys: list[bytes]) -> list[tuple[Any, ...] | None]:
        """The values of each key, which are equal for keys of one row; None for a key that cannot be read."""
        try:
            return list(zip(*(column.to_pylist() for column in self.read(keys)), strict=True)) or [None] * len(keys)
        except Exception as error:
            if not of_record(error):
                raise
            middle = len(keys) // 2
            return [*self.values(keys[:middle]), *self.values(keys[middle:])] if middle else [None]

    def id_kind(self, keys: Iterable[bytes | None]) -> IdKind:
        """The kind of the first document key that is a number or looks like one; empty if none is."""
        for key in keys:
            if key is None or self._documents is None or not self._documents.may_be_number(key):
                continue
            try:
                kind = self._documents.id_kind(as_json(*self._envelopes.exact(key)))
            except Exception as error:
                if not of_record(error):
                    raise
                continue
            if kind:
                return kind
        return ""

    def _group(self, framed: Framed, payloads: list[bytes]) -> list[pa.Array]:
        if self._documents is not None:
            plain = payloads if framed.avro is None else [as_json(framed, payload) for payload in payloads]
            return [self._documents.read(plain)]
        names, arrays = self._layouts.read(framed, payloads, self._profile.connector)
        if not self.columns or names == self.columns:
            return arrays
        if set(names) != set(self.columns):
            raise DecodeError(
                f"the key has the columns {', '.join(names)}, {self._known()} {', '.join(self.columns)}",
                hint="a topic must keep its key (message.key.columns); if it has changed for good, recreate the table "
                "sorted by the new key, or name the new key's columns in key_columns",
            )
        return [arrays[names.index(name)] for name in self.columns]

    def _known(self) -> str:
        profile = self._profile
        if profile.key_source == "configuration":
            return "key_columns are"
        since = f" (since offset {profile.key_offset})" if profile.key_offset >= 0 else ""
        return f"earlier ones{since} had"


def _inverse(order: list[int]) -> list[int]:
    out = [0] * len(order)
    for place, original in enumerate(order):
        out[original] = place
    return out
