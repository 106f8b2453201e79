"""The readers of a topic's values, and which of them reads a group: envelopes or rows, JSON or Avro."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ch_sink.decode.avro.events import AvroReader, as_json, no_events
from ch_sink.decode.avro.names import columns_of
from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.event_keys import pick
from ch_sink.decode.flattened.reader import FlatReader
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import Fault, Read
from ch_sink.decode.json.reader import JsonReader
from ch_sink.decode.signal_table import FIELDS, WINDOW, is_signal
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.change import Aside, BadRecord, Op, Records
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from ch_sink.types.connect import SourceType

__all__ = ["Readers", "documents"]

_KEPT = 256
"""Schemas whose form is remembered."""


class Readers:
    """Reads groups of one framing, each in the form that its values have."""

    def __init__(self, table: TargetTable, policy: Policy, *, before: bool) -> None:
        """``before``: whether before images are decoded."""
        self._columns = frozenset(c.name for c in table.source_columns)
        self._signals = not self._columns >= FIELDS
        self._prefix = policy.events.fields_prefix
        self._forms = Forms(self._columns, policy.events)
        self._json = JsonReader(table, policy, self._forms, before=before)
        self._avro = AvroReader(table, policy.values, before=before)
        self._form = Form.FLATTENED if policy.events.form == "flattened" else Form.ENVELOPE
        self._flat = FlatReader(table, policy, self._forms, before=before)
        self._schema_forms: dict[int, tuple[SourceType, Form]] = {}
        self._row_framings: dict[Framed, tuple[Framed, dict[str, str]]] = {}

    @property
    def flat_connector(self) -> str:
        """Connector name of the last flattened rows."""
        return self._flat.connector

    def read(self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records) -> list[Read]:
        """Read a group. Rows of the signal table are skipped, if the table is another. Raises Fault."""
        try:
            reads = self._plain(framed, payloads, own, records)
        except (Fault, TableError):
            if self._signals and any(self._is_signal(framed, payload) for payload in payloads):
                return self._without_signals(framed, payloads, own, records)
            raise
        if not self._signals:
            return reads
        unknown = {column.name for read in reads for _, column in read.unknown}
        likely = unknown >= FIELDS - self._columns or any(WINDOW in payloads[i] for i in _deletes(reads, own))
        if likely and any(self._is_signal(framed, payload) for payload in payloads):
            return self._without_signals(framed, payloads, own, records)
        return reads

    def _is_signal(self, framed: Framed, payload: bytes) -> bool:
        try:
            return is_signal(as_json(framed, payload), self._prefix)
        except DecodeError:
            return False

    def _without_signals(
        self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records
    ) -> list[Read]:
        signals = [i for i, payload in enumerate(payloads) if self._is_signal(framed, payload)]
        keep = sorted(set(range(len(payloads))).difference(signals))
        reads = self._plain(framed, [payloads[i] for i in keep], [own[i] for i in keep], records) if keep else []
        return [*reads, Read(no_events(), {Aside.WATERMARK: [own[i] for i in signals]}, [])]

    def _plain(self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records) -> list[Read]:
        """Read a group, in the form that its schema tells or, schemaless, in that of the last one. Raises Fault."""
        if framed.schema is not None:
            rows = framed if framed.avro is None else self._as_rows(framed)[0]
            assert rows.schema is not None
            return [self._read_as(self._form_of(rows.schema), framed, payloads, own, records)]
        try:
            return [self._read_as(self._form, framed, payloads, own, records)]
        except (Fault, OtherForm) as error:
            forms = [self._forms.of_payload(payload) for payload in payloads]
            if isinstance(error, Fault) and forms.count(self._form) == len(forms):
                raise
        self._form = forms[-1]
        reads = []
        for form in dict.fromkeys(forms):
            some = [i for i, found in enumerate(forms) if found is form]
            reads.append(self._read_as(form, framed, [payloads[i] for i in some], [own[i] for i in some], records))
        return reads

    def _form_of(self, schema: SourceType) -> Form:
        form = self._schema_forms.get(id(schema))
        if form is None:
            if len(self._schema_forms) > _KEPT:
                self._schema_forms.clear()
            # The schema is kept with its form, so that its id stays its own.
            form = self._schema_forms[id(schema)] = (schema, self._forms.of_schema(schema))
        return form[1]

    def _read_as(self, form: Form, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records) -> Read:
        if form is Form.ENVELOPE:
            return (self._json if framed.avro is None else self._avro).read(framed, payloads, own)
        if framed.avro is not None:
            rows, names = self._as_rows(framed)
            framed, payloads = rows, documents(framed, payloads, own, names)
        headers = [None] * len(own) if records.headers is None else pick(records.headers, own)
        return self._flat.read_rows(framed, payloads, own, headers)

    def _as_rows(self, framed: Framed) -> tuple[Framed, dict[str, str]]:
        """The framing of Avro rows once they are JSON, and the columns of the fields whose names were adjusted."""
        if framed not in self._row_framings:
            if len(self._row_framings) > _KEPT:
                self._row_framings.clear()
            assert framed.schema is not None
            named = columns_of([f.name for f in framed.schema.fields], self._columns)
            fields = tuple(replace(f, name=named[f.name]) for f in framed.schema.fields)
            adjusted = {field: column for field, column in named.items() if field != column}
            rows = Framed(framed.prefix, replace(framed.schema, fields=fields) if adjusted else framed.schema)
            self._row_framings[framed] = rows, adjusted
        return self._row_framings[framed]


def _deletes(reads: Sequence[Read], own: Sequence[int]) -> list[int]:
    """Which payloads of a group are deletes: they tell no unknown column."""
    found = [read.part.source_index[read.part.op == Op.DELETE] for read in reads]
    return [] if not any(map(len, found)) else list(np.searchsorted(own, np.concatenate(found)).tolist())


def documents(
    framed: Framed, values: list[bytes], places: Sequence[int], names: Mapping[str, str] | None = None
) -> list[bytes]:
    """Avro values as JSON: events of documents, whose images are JSON texts in Avro, too, and rows. Raises Fault.

    ``names``: fields that get another name.
    """
    out: list[bytes] = []
    bad: list[BadRecord] = []
    for value, place in zip(values, places, strict=True):
        try:
            out.append(as_json(framed, value, names))
        except DecodeError as error:
            bad.append(BadRecord(place, error.message))
    if bad:
        raise Fault(bad[0].reason, certain=bad)
    return out
