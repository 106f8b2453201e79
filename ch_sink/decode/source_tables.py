"""Topics that carry the events of several tables: which table an event is of, and the records of one of them."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_form import Form, Forms
from ch_sink.decode.framing import Envelopes
from ch_sink.decode.json.flat_layout import header_value
from ch_sink.decode.parts import of_record, unless_bad
from ch_sink.errors import DecodeError, StreamFailed
from ch_sink.model.change import Headers, Records
from ch_sink.model.policy import EventPolicy
from ch_sink.model.values import SourceTable
from ch_sink.ports import SchemaRegistry

_NOTHING = msgspec.Raw(b"")
_USUAL = EventPolicy()


class _Source(msgspec.Struct, gc=False):
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


_source = msgspec.json.Decoder(_Source)
_text = msgspec.json.Decoder(str)
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PARTS = ("db", "schema", "table")
"""Fields of the source block that a row or its headers may have, by themselves or behind ``source_``."""


class SourceTables:
    """Reads the source tables of values, without reading the rows in them.

    A row may have columns of any name and type, such as ``source``: they do not hide the table that it states.
    """

    def __init__(self, registry: SchemaRegistry | None = None, events: EventPolicy = _USUAL) -> None:
        """``events``: knows the prefixes of fields and headers that were added to rows."""
        self._envelopes = Envelopes(registry)
        self._headers = {events.headers_prefix + way + part: part for way in ("", "source_") for part in _PARTS}
        fields = ["source", "schema", "payload"]
        names = {f"_{part}": events.fields_prefix + part for part in _PARTS}
        names |= {f"source_{part}": f"{events.fields_prefix}source_{part}" for part in _PARTS}
        # Without a prefix, the row's own ``schema`` is not that of a schema envelope.
        own = [name for name in names if names[name] not in fields]
        made = [(name, msgspec.Raw, _NOTHING) for name in (*fields, *own)]
        value = msgspec.defstruct("Value", made, rename=names, gc=False)
        self._value = msgspec.json.Decoder(value)

    def of(self, value: bytes | None, headers: Headers | None = None) -> SourceTable | None:
        """The table that a value or its headers state; None if neither does. Raises RegistryError."""
        try:
            found = self._in_value(value) if value is not None else None
        except Exception as error:
            if not of_record(error):
                raise
            return None
        return found or (self._in_headers(headers) if headers else None)

    def _in_value(self, value: bytes) -> SourceTable | None:
        found: Any = self._value.decode(value if value[:1] != b"\0" else as_json(*self._envelopes.one(value)))
        stated = _stated(found)
        if stated is None and bytes(found.schema) and bytes(found.payload)[:1] == b"{":
            stated = _stated(self._value.decode(found.payload))
        return stated

    def _in_headers(self, headers: Headers) -> SourceTable | None:
        stated: dict[str, str] = {}
        for name, raw in headers:
            if raw is not None and name in self._headers:
                with suppress(DecodeError):
                    stated.setdefault(self._headers[name], header_value(name, raw, str))
        return SourceTable(*(stated.get(part, "") for part in _PARTS)) if stated.get("table") else None


class RecordsOfTable:
    """The records of one source table, and those that state none and are not rows: they concern every table.

    The name has to be the whole one that the table's events state, and rows have to say which table they are of: else
    rows of two tables would become one row.
    """

    def __init__(
        self,
        name: str,
        registry: SchemaRegistry | None = None,
        events: EventPolicy = _USUAL,
        columns: Collection[str] = (),
    ) -> None:
        """``name``: the table's whole one. ``columns``: of the stream's table."""
        self._name, self._tables = name, SourceTables(registry, events)
        self._envelopes, self._forms = Envelopes(registry), Forms(columns, events)
        self._others: set[SourceTable] = set()

    def among(self, records: Records) -> Records:
        """Those of the records.

        Raises RegistryError; StreamFailed for a row that states no table, and for a table that may be this one but
        states more or less of its name.
        """
        headers = records.headers or [None] * len(records)
        keep = []
        for place, (value, stated) in enumerate(zip(records.values, headers, strict=True)):
            table = self._tables.of(value, stated)
            if table is None and value is not None and self._is_row(value):
                raise self._nameless(records, place)
            if table is None or table.name == self._name:
                keep.append(place)
            elif table not in self._others:
                if table.may_be(self._name):
                    raise self._unclear(records, place, table)
                self._others.add(table)
        return records if len(keep) == len(records) else records.take(keep)

    def _is_row(self, value: bytes) -> bool:
        """Whether a value that states no table is a flattened row."""
        payload = unless_bad(b"", lambda: as_json(*self._envelopes.exact(value)))
        return self._forms.of_payload(payload) is Form.FLATTENED

    def _unclear(self, records: Records, place: int, table: SourceTable) -> StreamFailed:
        return StreamFailed(
            f"the event at offset {records.offsets[place]} of {records.topic}, partition {records.partition}, states "
            f"{table.name} as its source table, which may be {self._name} but is not the whole name of it",
            hint=f"Set source_table: {table.name}; or, if other events of the table state {self._name}, let the "
            "connector state the same parts in all of them (add.fields, add.headers), and send these again.",
        )

    def _nameless(self, records: Records, place: int) -> StreamFailed:
        return StreamFailed(
            f"the row at offset {records.offsets[place]} of {records.topic}, partition {records.partition}, does not "
            "state its source table, and the topic has several",
            hint="Let the connector add it: add.fields=op,table (and schema or db).",
        )


def _stated(value: Any) -> SourceTable | None:
    """The table that a row's added fields state, else that of an event's source block."""
    parts = [_added(value, part) for part in _PARTS]
    if parts[2]:
        return SourceTable(*parts)
    if bytes(value.source)[:1] != b"{":
        return None
    source = _source.decode(value.source)
    if source.table or source.collection:
        return SourceTable(source.db or "", source.schema or "", source.table or source.collection or "")
    return None


def _added(value: Any, part: str) -> str:
    for name in (f"_{part}", f"source_{part}"):
        raw = bytes(getattr(value, name, _NOTHING))
        if raw[:1] == b'"':
            return _text.decode(raw)
    return ""
