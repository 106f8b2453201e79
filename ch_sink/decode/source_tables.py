"""Topics that carry the events of several tables: which table an event is of, and the records of one of them."""

from dataclasses import dataclass

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.framing import Envelopes
from ch_sink.decode.isolate import of_record
from ch_sink.model.change import Records
from ch_sink.ports import SchemaRegistry


@dataclass(frozen=True, slots=True, order=True)
class SourceTable:
    """What an event's source block says of its table; empty where it says nothing."""

    database: str = ""
    schema: str = ""
    table: str = ""

    @property
    def name(self) -> str:
        """The table's whole name, as ``source_table`` takes it."""
        return ".".join(part for part in (self.database, self.schema, self.table) if part)

    def is_called(self, name: str) -> bool:
        """Whether a name, with or without schema and database, is that of the table."""
        parts = (self.database, self.schema, self.table)
        return name in {
            ".".join(part for part in some if part)
            for some in (parts, parts[1:], parts[2:], (self.database, self.table))
        }


class _Source(msgspec.Struct, gc=False):
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class _Event(msgspec.Struct, gc=False):
    source: _Source | None = None
    flat_db: str | None = msgspec.field(default=None, name="__db")
    flat_schema: str | None = msgspec.field(default=None, name="__schema")
    flat_table: str | None = msgspec.field(default=None, name="__table")


class _Wrapped(_Event, gc=False):
    payload: _Event | None = None


_wrapped = msgspec.json.Decoder(_Wrapped)


class SourceTables:
    """Reads the source tables of values, without reading the rows in them."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._envelopes = Envelopes(registry)

    def of(self, value: bytes | None) -> SourceTable | None:
        """The table that a value states; None if it states none. Raises RegistryError."""
        if value is None:
            return None
        try:
            found = _wrapped.decode(value if value[:1] != b"\0" else as_json(*self._envelopes.one(value)))
        except Exception as error:
            if not of_record(error):
                raise
            return None
        return _stated(found) or (_stated(found.payload) if found.payload is not None else None)


class RecordsOfTable:
    """The records of one source table, and those that state none: they concern every table."""

    def __init__(self, name: str, registry: SchemaRegistry | None = None) -> None:
        """``name``: the table's, with or without schema and database."""
        self._name, self._tables = name, SourceTables(registry)
        self._known: dict[SourceTable, bool] = {}

    def among(self, records: Records) -> Records:
        """Those of the records. Raises RegistryError."""
        keep = [place for place, value in enumerate(records.values) if self._concerns(value)]
        return records if len(keep) == len(records) else records.take(keep)

    def _concerns(self, value: bytes | None) -> bool:
        table = self._tables.of(value)
        if table is None:
            return True
        if table not in self._known:
            self._known[table] = table.is_called(self._name)
        return self._known[table]


def _stated(event: _Event) -> SourceTable | None:
    source = event.source
    if source is not None and (source.table or source.collection):
        return SourceTable(source.db or "", source.schema or "", source.table or source.collection or "")
    if event.flat_table:
        return SourceTable(event.flat_db or "", event.flat_schema or "", event.flat_table)
    return None
