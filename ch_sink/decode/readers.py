"""Selects the reader for each group of a topic's values; null values are deletes or tombstones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.decode.avro.columns import columns_of
from ch_sink.decode.avro.events import AvroReader, as_json
from ch_sink.decode.event_form import FIELDS, WINDOW, Form, Forms, OtherForm, connector_in, is_signal
from ch_sink.decode.event_keys import pick
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import meta, to_columns
from ch_sink.decode.json.flat_layout import HeaderFields, block_types, flat_connector, flattened
from ch_sink.decode.json.flat_reader import FlatReader, missing_position
from ch_sink.decode.json.layout import KEPT, Layout, build_layout
from ch_sink.decode.json.scanned import Scanner, scanner
from ch_sink.decode.mongodb.events import document_layout, document_scanner, is_document_source
from ch_sink.decode.parts import Fault, Part, Read, as_places, each, no_events
from ch_sink.errors import DecodeError, StreamFailed, TableError
from ch_sink.model.change import Headers, Op, Records, Skipped
from ch_sink.model.policy import Policy, TopicProfile
from ch_sink.sources import FLATTENED, Flattened, source_for
from ch_sink.table.model import TargetTable


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
        self._json = _JsonReader(table, policy, self._forms, before=before)
        self._avro = AvroReader(table, policy.values, before=before)
        self._flat = FlatReader(table, policy, self._forms, before=before)
        self._of_schema = lru_cache(KEPT)(self._form_of)
        self._rows_of = lru_cache(KEPT)(self._as_rows)

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
    return each(lambda value: as_json(framed, value, names), values, places)


class _JsonReader:
    """Decodes groups of JSON envelopes."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._table, self._policy, self._forms, self._before = table, policy, forms, before
        self._layout = lru_cache(KEPT)(self._build)
        self._scanner = lru_cache(KEPT)(_scanner)

    def read(self, framed: Framed, payloads: list[bytes], places: Sequence[int], connector: str) -> Read:
        """Decode a group; ``places`` are the payloads' places in the chunk. Raises Fault, OtherForm.

        ``connector``: the connector of earlier events, for a first payload that names none.
        """
        connector = connector_in(payloads[0]) or connector
        try:
            layout = self._layout(framed, connector)
        except DecodeError as error:
            raise Fault(error.message) from error
        try:
            fast = self._scanner(layout)
            scanned = fast.read(payloads, places) if fast is not None else None
            if scanned is not None:
                return scanned
            try:
                rows = layout.decoded(payloads)
            except Fault as fault:
                fault.suspects = [places[i] for i in fault.suspects]
                raise
            ops = [row.op for row in rows]
            if framed.schema is None:
                # A logical message, or a flattened row with a column `op` of its own.
                odd = [i for i, op in enumerate(ops) if op in ("", "m")] if "" in ops or "m" in ops else ()
                if any(self._forms.of_payload(payloads[i]) is Form.FLATTENED for i in odd):
                    raise OtherForm
            return to_columns(layout, rows, payloads, places, ops)
        except Fault as fault:
            fault.unknown = layout.row.unknown
            raise

    def _build(self, framed: Framed, connector: str) -> Layout:
        source = source_for(connector)
        if is_document_source(source):
            return document_layout(self._table, self._policy, source, before=self._before)
        return build_layout(self._table, self._policy.values, connector, schema=framed.schema, before=self._before)


def _scanner(layout: Layout) -> Scanner | None:
    return scanner(layout) if layout.images is None else document_scanner(layout)


class Tombstones:
    """Decides which null values of a topic are deletes, and turns those into events.

    With ``tombstones: auto`` the last row before a null value decides.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._headers = HeaderFields(policy.events.headers_prefix)

    def deletes(
        self,
        places: Sequence[int],
        keys: Sequence[bytes | None],
        parts: Sequence[Part],
        *,
        known: bool,
        before: bool | None,
        keyless: bool,
    ) -> list[int]:
        """The null values (by place in the chunk) that delete a row. A null value with a null key deletes nothing.

        Raises StreamFailed if one means that a row without a key was deleted (``keyless``).

        ``known``: the records waited for a hand-over, so they are deletes. ``before``: whether the last row before the
        chunk makes later null values deletes; None if there was no row, so that the chunk's first row decides.
        """
        chosen = self._policy.events.tombstones
        if known or chosen != "auto":
            means = np.full(len(places), known or chosen == "delete", dtype=np.bool_)
        else:
            means = _by_form(np.asarray(places, dtype=np.int64), [p for p in parts if len(p)], before)
        found = [place for place, delete in zip(places, means.tolist(), strict=True) if delete]
        if keyless and any(keys[place] is None for place in found):
            raise StreamFailed(
                "a flattened row was deleted, and the table has no key: a null value does not say which row it was",
                hint="Let the connector write deletes as rows (delete.tombstone.handling.mode=rewrite) and keys "
                "(message.key.columns), or set key_columns; or leave deletes out by tombstones: ignore.",
            )
        return [place for place in found if keys[place]]

    def part(self, records: Records, places: Sequence[int], connector: str) -> Part:
        """Deletes, without keys; only headers can state their positions and times.

        Raises Fault, and StreamFailed if positions must order the changes and a delete has none, or if it does not say
        of which table it is and the stream takes the records of one.
        """
        every = records.headers
        texts = [self._headers.texts(every[place]) if every is not None else {} for place in places]
        if self._policy.events.of_one_table:
            self._expect_tables(records, places, texts)
        source = self._source(texts, connector)
        types = block_types(source)
        needed = set(source.fields)
        block = msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False)
        try:
            blocks: list[Any] = [block(**self._headers.values(found, types)) for found in texts]
        except DecodeError as error:
            raise Fault(error.message, "position") from error
        part = meta(source.name, source, blocks, np.full(len(places), Op.DELETE, dtype=np.uint8), places)
        if self._policy.versions.strategy == "source_position":
            lacking = [found for found in texts if not needed or not needed <= found.keys()]
            if lacking:
                raise missing_position(sorted(needed - lacking[0].keys()))
        stated = [_time(b, int(records.timestamps[place])) for b, place in zip(blocks, places, strict=True)]
        try:
            part.source_ts = np.array(stated, dtype=np.int64)
        except OverflowError as error:
            raise Fault("source.ts_ms does not fit 64 bits", "position") from error
        part.null_deletes = np.ones(len(places), dtype=np.bool_)
        return part

    @staticmethod
    def _expect_tables(records: Records, places: Sequence[int], texts: Sequence[dict[str, bytes]]) -> None:
        for place, found in zip(places, texts, strict=True):
            if "table" not in found:
                raise StreamFailed(
                    f"the null value at offset {records.offsets[place]} of {records.topic}, partition "
                    f"{records.partition}, deletes a row and does not state its source table; the topic has several",
                    hint="Let the connector write deletes as rows (delete.tombstone.handling.mode=rewrite, "
                    "add.fields=op,table), or add headers to them (add.headers=op,table).",
                )

    def _source(self, texts: Sequence[dict[str, bytes]], connector: str) -> Flattened:
        """The rows' source, else the one that the headers name."""
        try:
            if connector.partition(":")[0] == FLATTENED and connector != FLATTENED:
                return flattened(connector)
            named = next((found["connector"] for found in texts if "connector" in found), None)
            stated = self._headers.values({"connector": named}, {"connector": str})["connector"] if named else ""
            return flattened(flat_connector({role for found in texts for role in found}, stated))
        except DecodeError as error:
            raise Fault(error.message) from error


def _by_form(places: npt.NDArray[np.int64], parts: Sequence[Part], before: bool | None) -> npt.NDArray[np.bool_]:
    """The answer of the last row before each place; before the first row: ``before``, or that row's if it is None."""
    if not parts:
        return np.full(len(places), bool(before), dtype=np.bool_)
    index = np.concatenate([p.source_index for p in parts])
    none = (np.zeros(len(p), dtype=np.bool_) for p in parts)
    says = np.concatenate([no if p.null_deletes is None else p.null_deletes for p, no in zip(parts, none, strict=True)])
    order = np.argsort(index, kind="stable")
    index, says = index[order], says[order]
    said = np.concatenate([[bool(says[0]) if before is None else before], says])
    means: npt.NDArray[np.bool_] = said[np.searchsorted(index, places)]
    return means


def _time(block: Any, timestamp: int) -> int:
    """The source's time, else the connector's, else Kafka's."""
    for found in (block.ts_ms, block.event_ts_ms, timestamp):
        if found is not None:
            return max(int(found), 0)
    return 0
