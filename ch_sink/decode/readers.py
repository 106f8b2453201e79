"""Selects the reader for each group of a topic's values: envelopes or rows, JSON or Avro."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ch_sink.decode.assemble import as_places
from ch_sink.decode.avro.events import AvroReader, as_json, no_events
from ch_sink.decode.avro.layout import columns_of
from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.event_keys import pick
from ch_sink.decode.flattened.reader import FlatReader
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import Fault, Read
from ch_sink.decode.json.reader import JsonReader
from ch_sink.decode.signal_table import FIELDS, WINDOW, is_signal
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.change import BadRecord, Headers, Op, Records, Skipped
from ch_sink.model.policy import Policy
from ch_sink.model.profile import TopicProfile
from ch_sink.table.model import TargetTable

__all__ = ["Readers", "avro_as_json"]

_KEPT = 256
"""Schemas that are remembered."""


@dataclass(frozen=True, slots=True)
class Group:
    """Payloads of one framing."""

    framed: Framed
    payloads: list[bytes]
    places: Sequence[int]
    """The payloads' places in the chunk."""
    headers: Sequence[Headers | None]

    def take(self, index: Sequence[int]) -> "Group":
        """The payloads with these numbers."""
        return Group(
            self.framed,
            [self.payloads[i] for i in index],
            [self.places[i] for i in index],
            [self.headers[i] for i in index],
        )


class Readers:
    """Reads groups of one framing, each in the form of its values."""

    def __init__(self, table: TargetTable, policy: Policy, *, before: bool) -> None:
        """``before``: whether before images are decoded."""
        self._columns = frozenset(c.name for c in table.source_columns)
        self._signals = not self._columns >= FIELDS
        self._prefix = policy.events.fields_prefix
        self._pinned = policy.events.form == "flattened"
        self._forms = Forms(self._columns, policy.events)
        self._json = JsonReader(table, policy, self._forms, before=before)
        self._avro = AvroReader(table, policy.values, before=before)
        self._flat = FlatReader(table, policy, self._forms, before=before)
        self._of_schema = lru_cache(_KEPT)(self._form_of)
        self._rows_of = lru_cache(_KEPT)(self._as_rows)

    def read(
        self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records, profile: TopicProfile
    ) -> list[Read]:
        """Read a group. Rows of the signal table are skipped unless it is the target's source. Raises Fault."""
        headers = [None] * len(own) if records.headers is None else pick(records.headers, own)
        group = Group(framed, payloads, own, headers)
        try:
            reads = self._read(group, profile)
        except (Fault, TableError):
            if self._signals and any(self._is_signal(framed, payload) for payload in payloads):
                return self._without_signals(group, profile)
            raise
        if not self._signals:
            return reads
        unknown = {column.name for read in reads for _, column in read.unknown}
        likely = unknown >= FIELDS - self._columns or WINDOW in b"".join([payloads[i] for i in _deletes(reads, own)])
        if likely and any(self._is_signal(framed, payload) for payload in payloads):
            return self._without_signals(group, profile)
        return reads

    def _is_signal(self, framed: Framed, payload: bytes) -> bool:
        try:
            return is_signal(as_json(framed, payload), self._prefix)
        except DecodeError:
            return False

    def _without_signals(self, group: Group, profile: TopicProfile) -> list[Read]:
        signals = [i for i, payload in enumerate(group.payloads) if self._is_signal(group.framed, payload)]
        keep = sorted(set(range(len(group.payloads))).difference(signals))
        reads = self._read(group.take(keep), profile) if keep else []
        return [*reads, Read(no_events(), {Skipped.WATERMARK: [group.places[i] for i in signals]}, [])]

    def _read(self, group: Group, profile: TopicProfile) -> list[Read]:
        """Read a group in the form that its schema declares, or in that of earlier rows if schemaless. Raises Fault."""
        if group.framed.schema is not None:
            return [self._read_as(self._of_schema(group.framed), group, profile)]
        usual = Form.FLATTENED if self._pinned or profile.flattened else Form.ENVELOPE
        try:
            return [self._read_as(usual, group, profile)]
        except (Fault, OtherForm) as error:
            forms = [self._forms.of_payload(payload) for payload in group.payloads]
            if isinstance(error, Fault) and forms.count(usual) == len(forms):
                raise
        return [
            self._read_as(form, group.take([i for i, found in enumerate(forms) if found is form]), profile)
            for form in dict.fromkeys(forms)
        ]

    def _read_as(self, form: Form, group: Group, profile: TopicProfile) -> Read:
        framed, payloads, places = group.framed, group.payloads, group.places
        if form is Form.ENVELOPE:
            if framed.avro is not None:
                return self._avro.read(framed, payloads, places)
            return self._json.read(framed, payloads, places, "" if profile.flattened else profile.connector)
        if framed.avro is not None:
            rows, names = self._rows_of(framed)
            framed, payloads = rows, avro_as_json(framed, payloads, places, names)
        connector = profile.connector if profile.flattened else ""
        return self._flat.read(framed, payloads, places, group.headers, connector)

    def _form_of(self, framed: Framed) -> Form:
        rows = framed if framed.avro is None else self._rows_of(framed)[0]
        assert rows.schema is not None
        return self._forms.of_schema(rows.schema)

    def _as_rows(self, framed: Framed) -> tuple[Framed, dict[str, str]]:
        """The framing of Avro rows after conversion to JSON, and the columns of fields with adjusted names."""
        assert framed.schema is not None
        named = columns_of([f.name for f in framed.schema.fields], self._columns)
        fields = tuple(replace(f, name=named[f.name]) for f in framed.schema.fields)
        adjusted = {field: column for field, column in named.items() if field != column}
        return Framed(framed.prefix, replace(framed.schema, fields=fields) if adjusted else framed.schema), adjusted


def _deletes(reads: Sequence[Read], own: Sequence[int]) -> list[int]:
    """Which payloads of a group are deletes: they show no unknown column."""
    found = [read.part.source_index[read.part.op == Op.DELETE] for read in reads]
    return [] if not any(map(len, found)) else list(np.searchsorted(as_places(own), np.concatenate(found)).tolist())


def avro_as_json(
    framed: Framed, values: list[bytes], places: Sequence[int], names: Mapping[str, str] | None = None
) -> list[bytes]:
    """Avro values as JSON: flattened rows, and document events, whose images are JSON text in Avro too. Raises Fault.

    ``names``: fields to rename.
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
