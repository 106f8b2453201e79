"""Keys of change events: from the Kafka key, typed as the target's columns, else from the row image.

Which columns the key of a topic has is learned from the first record that shows them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.avro.columns import holds_documents
from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_form import changes_no_row, connector_in
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.key_layouts import REMEDY, KeyLayouts, is_struct_text, reason
from ch_sink.decode.mongodb.columns import DocumentKeys, is_document_event, key_column_name
from ch_sink.decode.mongodb.events import take_key
from ch_sink.decode.native.library import Joined, library
from ch_sink.decode.parts import Fault, Mask, Part, fails, of_record, unless_bad
from ch_sink.errors import DecodeError, StreamFailed, TableError
from ch_sink.model.change import Op, Records
from ch_sink.model.policy import Policy, TopicProfile
from ch_sink.table.model import TargetTable
from ch_sink.types import arrow_type
from ch_sink.types.arrow import python_values, untimed
from ch_sink.types.chtype import parse_type
from ch_sink.types.converter import shown

_MOVED = (
    "let the connector state the key (message.key.columns), which also sends a delete of the old key; "
    "`ch_sink repair --against source` corrects the row"
)


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
        where = pa.array(np.argsort(order))
        return [pa.concat_arrays(column).take(where) for column in zip(*parts, strict=True)]

    def values(self, keys: list[bytes]) -> list[tuple[Any, ...] | None]:
        """The values of each key, which are equal for keys of one row; None for a key that cannot be read."""
        try:
            return list(zip(*(python_values(column) for column in self.read(keys)), strict=True)) or [None] * len(keys)
        except Exception as error:
            if not of_record(error):
                raise
            middle = len(keys) // 2
            return [*self.values(keys[:middle]), *self.values(keys[middle:])] if middle else [None]

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
                hint="a topic must keep its key (message.key.columns); if it has changed for good, begin another table "
                "and another `stream` with start: latest, and take a new snapshot",
            )
        return [arrays[names.index(name)] for name in self.columns]

    def _known(self) -> str:
        profile = self._profile
        if profile.key_source == "configuration":
            return "key_columns are"
        since = f" (since offset {profile.key_offset})" if profile.key_offset >= 0 else ""
        return f"earlier ones{since} had"


def give_key(part: Part, records: Records, keys: KeyReader) -> None:
    """Give a part its key columns, also in the images that lack them. Raises Fault."""
    _fill(part, records, keys)
    _refuse_nulls(part, keys)
    if keys.of_documents:
        take_key(part)
    else:
        _from_key(part)


def _refuse_nulls(part: Part, reader: KeyReader) -> None:
    for name in reader.never_null:
        array = (part.key or {}).get(name)
        if array is None or not array.null_count:
            continue
        # The server would store the column's default, which is the key of another row.
        null = array.is_null().to_numpy(zero_copy_only=False) & (part.op != Op.TRUNCATE)
        if null.any():
            reason = f"key column {name!r}: the key is null, but the table's column cannot hold null"
            raise Fault(reason, "key", name, part.source_index[null].tolist())


def _refuse_others(part: Part) -> None:
    """Refuse events whose row has another key than their record: changes of the row would not find it. Raises Fault."""
    rows = ~np.isin(part.op, (Op.DELETE, Op.TRUNCATE))
    for name, key in (part.key or {}).items():
        image = part.after.get(name)
        if image is None or pa.types.is_nested(key.type):
            continue
        hidden = part.absent.get(name, ~rows) | part.unavailable.get(name, ~rows)
        other = rows & ~hidden & ~pc.fill_null(pc.equal(image, key), False).to_numpy(zero_copy_only=False)
        if other.any():
            n = int(np.flatnonzero(other)[0])
            stated, there = shown(key[n].as_py()), shown(image[n].as_py())
            reason = f"key column {name!r}: the record's key is {stated}, and its row has {there}"
            raise Fault(reason, "key", name, part.source_index[other].tolist())


def _fill(part: Part, records: Records, reader: KeyReader) -> None:
    """Fill in the part's key columns: from the Kafka key, else from the row image. Raises Fault."""
    keys = pick(records.keys, part.source_index.tolist())
    columns = reader.columns
    if not columns:
        _refuse(part, keys, reader)
        return
    given = _given(keys)
    try:
        arrays = reader.read(given)
    except DecodeError as error:
        places = part.source_index.tolist()
        suspects = [p for p, key in zip(places, keys, strict=True) if key is not None and _is_bad(key, reader)]
        raise Fault(error.message, "key", suspects=suspects) from error
    found = dict(zip(columns, arrays, strict=True))
    part.key = found if len(given) == len(keys) else _merge_keys(part, keys, found, reader.types)
    if given and not reader.of_documents and given[0][:1] not in (b"{", b"\0"):
        # Text without a form of its own: a converter may have written more than one thing so.
        _refuse_others(part)


def _given(keys: list[bytes | None]) -> list[bytes]:
    """The keys that are there."""
    if library() is not None and None not in keys:
        together = Joined(keys)  # type: ignore[arg-type]
        if not (together.lengths == len(b"null")).any():
            return together
    return [key for key in keys if key is not None and key != b"null"]


def _refuse(part: Part, keys: Sequence[bytes | None], reader: KeyReader) -> None:
    """The key columns are still unknown, so records with unreadable keys are bad. Raises Fault."""
    given = [(place, key) for place, key in zip(part.source_index.tolist(), keys, strict=True) if key is not None]
    for _, key in given:
        if key != b"null":
            try:
                reader.read([key])
            except DecodeError as error:
                suspects = [place for place, key in given if _is_bad(key, reader)]
                raise Fault(error.message, "key", suspects=suspects) from error
            return


def _is_bad(key: bytes, reader: KeyReader) -> bool:
    return key != b"null" and fails(reader.read, [key])


def pick(values: Sequence[Any], index: Sequence[int]) -> list[Any]:
    """The values at ascending places."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return list(values[index[0] : index[-1] + 1])
    return [values[i] for i in index]


def _merge_keys(
    part: Part, keys: Sequence[bytes | None], given: dict[str, pa.Array], types: list[pa.DataType]
) -> dict[str, pa.Array]:
    """Key columns if some records have no Kafka key: null for truncates, the image's values for the others.

    Raises Fault if an image lacks a column, or if an update changes one: it would have to be two changes, and the row
    would stay under its former key.
    """
    n = len(part)
    has_key = np.array([key is not None and key != b"null" for key in keys], dtype=np.bool_)
    truncate = part.op == Op.TRUNCATE
    deleted = part.op == Op.DELETE
    place = np.cumsum(has_key) - 1
    nowhere, everywhere = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    out: dict[str, pa.Array] = {}
    for (name, array), arrow in zip(given.items(), types, strict=True):
        after = part.after.get(name, pa.nulls(n, arrow))
        before = part.before.get(name, pa.nulls(n, arrow))
        lacks_after = part.absent.get(name, everywhere) if name in part.after else nowhere
        lacks_before = ~part.has_before if name in part.before else nowhere
        if bool((~has_key & ~truncate & np.where(deleted, lacks_before, lacks_after)).any()):
            raise Fault(f"the record has no Kafka key, and neither of its row images has {name!r}", "key", name)
        if name in part.before:
            _refuse_moves(part, name, before, after, ~has_key & (part.op == Op.UPDATE) & part.has_before)
        pool = pa.concat_arrays([array, after, before, pa.nulls(1, arrow)])
        rows = np.arange(n)
        image = np.where(deleted, len(array) + n + rows, len(array) + rows)
        where = np.where(has_key, place, np.where(truncate, len(pool) - 1, image))
        out[name] = pool.take(pa.array(where))
    return out


def _refuse_moves(part: Part, name: str, before: pa.Array, after: pa.Array, updates: Mask) -> None:
    """Refuse updates (a mask) without a Kafka key that change a key column."""
    if not updates.any():
        return
    both = pa.concat_arrays([before, after])
    if pa.types.is_nested(both.type):
        both = pa.array([repr(value) for value in untimed(both).to_pylist()])
    # Codes and not values: null equals null, and NaN equals NaN.
    codes = both.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    moved = updates & (codes[: len(before)] != codes[len(before) :])
    if moved.any():
        reason = f"the record has no Kafka key, and the update changes {name!r}, a column of key_columns: {_MOVED}"
        raise Fault(reason, "key", name, part.source_index[moved].tolist())


def _from_key(part: Part) -> None:
    """Add key columns to the images that lack them, such as the one that a topic router adds to the key only."""
    if not len(part):
        return
    for name, array in (part.key or {}).items():
        lacks = part.absent.pop(name, None)
        if name not in part.after:
            lacks = np.ones(len(part), dtype=np.bool_)
        if lacks is not None:
            gone = np.isin(part.op, (Op.DELETE, Op.TRUNCATE))
            part.after[name] = _filled(part.after.get(name), lacks & ~gone, array)
        if part.before:
            before = part.before.get(name)
            null = True if before is None else before.is_null().to_numpy(zero_copy_only=False)
            part.before[name] = _filled(before, part.has_before & null, array)


def _filled(image: pa.Array | None, where: Mask, key: pa.Array) -> pa.Array:
    """A column of an image (None: null everywhere) with the key's values at some places."""
    return pc.if_else(pa.array(where), key, pa.scalar(None, key.type) if image is None else image)


class KeyLearner:
    """Learns the key's columns. Records that change no row do not show them."""

    def __init__(
        self, table: TargetTable, policy: Policy, layouts: KeyLayouts, keys: Envelopes, values: Envelopes
    ) -> None:
        self._table, self._policy, self._layouts = table, policy, layouts
        self._keys, self._values = keys, values
        self._names = frozenset(c.name for c in table.source_columns)
        self._sorted = frozenset(table.sorting_key)
        self._document_column = key_column_name(policy)

    def learn(self, records: Records, profile: TopicProfile) -> TopicProfile:
        """The profile with the key's columns, if these records are the first to show them.

        Raises StreamFailed if all rows have the text of a struct as their key.

        Keys of null values count until a row shows the columns. Columns outside the table's sorting key are hardly its
        key: they count only if the configuration makes all null values deletes.
        """
        if profile.key_source in ("configuration", "row"):
            return profile
        texts: list[bytes] = []
        rows = False
        places = [i for i, key in enumerate(records.keys) if key is not None and key != b"null"]
        for i in places:
            value, key = records.values[i], records.keys[i]
            if value is None or key is None:
                continue
            offset = int(records.offsets[i])
            if self._is_document(value):
                return replace(
                    profile,
                    key_columns=(self._document_column,),
                    key_source="row",
                    key_offset=offset,
                    documents=True,
                )
            if self._is_no_row(value):
                continue
            columns = self._columns_of(key, profile.connector or self._connector_of(value))
            if is_struct_text(key) and b'"' not in key and (not columns or key.startswith(b"Struct{")):
                texts.append(key)
                continue
            if self._policy.keys.columns:
                return replace(profile, key_source="configuration", key_offset=offset)
            rows = True
            if columns:
                return replace(profile, key_columns=columns, key_source="row", key_offset=offset)
        if texts and not rows:
            raise StreamFailed(reason(records.topic, texts[0]), hint=REMEDY)
        if self._policy.keys.columns or profile.key_source:
            return profile
        return self._of_null_values(records, places, profile)

    def _of_null_values(self, records: Records, places: list[int], profile: TopicProfile) -> TopicProfile:
        deletes = self._policy.events.tombstones == "delete"
        unsorted: TopicProfile | None = None
        for i in places:
            key = records.keys[i]
            if records.values[i] is not None or key is None:
                continue
            columns = self._columns_of(key, profile.connector)
            found = replace(profile, key_columns=columns, key_source="null value", key_offset=int(records.offsets[i]))
            if not columns:
                if deletes and self._is_document_key(key):
                    return replace(found, key_columns=(self._document_column,), documents=True)
            elif self._sorted.issuperset(columns):
                return found
            elif deletes and unsorted is None:
                unsorted = found
        return unsorted or profile

    def _connector_of(self, value: bytes) -> str:
        return unless_bad("", lambda: connector_in(as_json(*self._values.exact(value))))

    def _columns_of(self, key: bytes, connector: str) -> tuple[str, ...]:
        """The columns of a key; empty if it is not a key of this table."""
        try:
            framed, payload = self._keys.exact(key)
            return self._layouts.read(framed, [payload], connector)[0]
        except Exception as error:
            if not of_record(error) and not isinstance(error, TableError):
                raise
            return ()

    def _is_document(self, value: bytes) -> bool:
        if value[:1] != b"\0":
            return is_document_event(value)

        def in_avro() -> bool:
            framed, payload = self._values.exact(value)
            return holds_documents(framed) and is_document_event(as_json(framed, payload))

        return unless_bad(False, in_avro)

    def _is_document_key(self, key: bytes) -> bool:
        """Whether a key is a document's although its value does not show it: it has `id`, and the table has `_id`."""
        found: Any = unless_bad(None, lambda: msgspec.json.decode(as_json(*self._keys.exact(key))))
        column = self._table.column(self._document_column)
        is_key = isinstance(found, dict) and found.keys() == {"id"} and isinstance(found["id"], str)
        return is_key and column is not None and column.insertable and self._table.column("id") is None

    def _is_no_row(self, value: bytes) -> bool:
        """Whether a value is of a kind that changes no row: transaction metadata, a signal, a message, …"""
        found: Any = unless_bad(None, lambda: msgspec.json.decode(as_json(*self._values.exact(value))))
        return changes_no_row(found, self._names, self._policy.events.fields_prefix)
