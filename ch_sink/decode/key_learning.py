"""Which columns the key of a topic has, learned from the first record that shows them."""

import re
from dataclasses import replace
from typing import Any

import msgspec

from ch_sink.decode.avro.columns import holds_documents
from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_form import changes_no_row
from ch_sink.decode.framing import Envelopes
from ch_sink.decode.json.reader import connector_in
from ch_sink.decode.key_layouts import KeyLayouts
from ch_sink.decode.mongodb import is_document_event, key_column_name
from ch_sink.decode.parts import of_record, unless_bad
from ch_sink.errors import StreamFailed, TableError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, TopicProfile
from ch_sink.table.model import TargetTable


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


_STRUCT_TEXT = re.compile(rb"(Struct)?\{.*\}", re.DOTALL)
REMEDY = (
    "Set key.converter to org.apache.kafka.connect.json.JsonConverter (or Avro's) at the connector and take a "
    "new snapshot into a new topic. If the key is one column, an ExtractField$Key transformation before "
    "StringConverter works too: then name the column with key_columns."
)


def is_struct_text(key: bytes) -> bool:
    """Whether a key is the text that Java prints for a struct or map, such as ``Struct{id=1}``."""
    if _STRUCT_TEXT.fullmatch(key) is None:
        return False
    try:
        msgspec.json.decode(key)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return True
    return False


def reason(topic: str, key: bytes) -> str:
    """Why a topic with such a key cannot be read."""
    text = key.decode(errors="replace")[:80]
    return (
        f"the keys of topic {topic} are text such as {text!r}: StringConverter wrote the key's struct as text, and no "
        "column can be read from it"
    )
