"""The decoder of one topic: records to a ChangeBatch."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.change import Aside, BadRecord, ChangeBatch, Half, Op, Records, UnknownColumn
from ch_sink.decode.avro.events import AvroReader, as_json, no_events
from ch_sink.decode.columns import Fault, Read, fails
from ch_sink.decode.documents import take_key
from ch_sink.decode.flat import FlatReader
from ch_sink.decode.forms import Form, Forms, OtherForm
from ch_sink.decode.framing import SCHEMALESS, Envelopes, Format, Framed, FramingError
from ch_sink.decode.json import JsonReader
from ch_sink.decode.keys import KeyReader
from ch_sink.decode.part import Part, Shape, assemble
from ch_sink.decode.schema import SourceType
from ch_sink.decode.signals import FIELDS, WINDOW, is_signal
from ch_sink.decode.tombstones import Tombstones
from ch_sink.decode.unknown import joined
from ch_sink.errors import ConfigError, DecodeError
from ch_sink.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable

__all__ = ["Decoder"]

_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
_KEPT = 256
"""Schemas whose form is remembered."""
_MOST_PARTS = 8
"""More pieces than this are decoded once more as a whole when the bad records are known."""


class Decoder:
    """Turns chunks of one topic into change events. Remembers schemas and layouts between chunks.

    A chunk is decoded as a whole; when that fails it is halved down to the records at fault, so a record
    means the same alone and among others.
    """

    def __init__(
        self,
        table: TargetTable,
        policy: Policy,
        *,
        want_before: bool = False,
        format: Format = "auto",  # noqa: A002
        registry: SchemaRegistry | None = None,
    ) -> None:
        """``format``: the only one that values may have; keys are recognised by themselves. ConfigError for others.

        ``registry``: where the schemas of Avro values and keys are; without one such records are bad.
        """
        if format not in ("auto", "json", "avro"):
            raise ConfigError(f"format {format!r} cannot be decoded", hint="choose auto, json or avro")
        self._shape = Shape(table.source_columns, want_before)
        self._envelopes = Envelopes(registry, format)
        self._keys = KeyReader(table, policy, registry)
        # Without Kafka keys a delete's key is in its before image.
        before = want_before or bool(policy.key_columns)
        self._columns = frozenset(c.name for c in table.source_columns)
        self._signals = not self._columns >= FIELDS
        self._forms = Forms([c.name for c in table.source_columns], policy)
        self._json = JsonReader(table, policy, self._forms, before=before)
        self._avro = AvroReader(table, policy, before=before)
        self._form = Form.FLATTENED if policy.events == "flattened" else Form.ENVELOPE
        self._flat = FlatReader(table, policy, self._forms, before=before)
        self._schema_forms: dict[int, tuple[SourceType, Form]] = {}
        self._row_framings: dict[Framed, Framed] = {}
        self._tombstones = Tombstones(policy)

    def key_columns(self) -> tuple[str, ...]:
        """Names of the key's columns in the key's order; empty until the first record with a key was decoded."""
        return self._keys.columns

    @property
    def undecided(self) -> bool:
        """Whether the last chunk had null values, and no row seen so far tells whether they are deletes."""
        return self._tombstones.undecided

    def decode(self, records: Records, *, waited: bool = False) -> ChangeBatch:
        """Change events of a chunk, in Kafka order, with what was set aside and what is bad.

        ``waited``: the records come from the pending table; null values among them are deletes.

        Raises TableError where a column of the table cannot take the source's type at all, RegistryError where
        the schema registry cannot be asked, StreamFailed where positions are to order the changes and flattened
        events do not tell them.
        """
        aside: Counter[Aside] = Counter()
        values = records.values
        live: Sequence[int] = range(len(values))
        if None in values:
            live = [i for i, value in enumerate(values) if value is not None]
        self._keys.learn(records.keys, values)
        bad: list[BadRecord] = []
        unknown: list[UnknownColumn] = []
        outcomes = self._whole_or_halves(records, live, bad, unknown, self._attempt)
        if len(outcomes) > _MOST_PARTS:
            failed = {b.index for b in bad}
            rest = [i for i in live if i not in failed]
            outcomes = self._whole_or_halves(records, rest, bad, unknown, self._attempt)
        outcomes += self._null_values(records, outcomes, bad, waited=waited)
        parts: list[Part] = []
        for outcome in outcomes:
            parts.extend(outcome.parts)
            aside.update(outcome.aside)
            unknown.extend(replace(column, first_offset=offset) for offset, column in outcome.unknown)
        half = _halves(records)
        key_types = dict(zip(self._keys.columns, self._keys.types, strict=True))
        return assemble(
            parts,
            self._shape,
            records.offsets,
            half,
            key_types,
            +aside,
            bad,
            joined(unknown),
        )

    def _null_values(
        self, records: Records, outcomes: "list[_Outcome]", bad: list[BadRecord], *, waited: bool
    ) -> "list[_Outcome]":
        """The null values of a chunk: deletes, and those that are set aside."""
        places = [i for i, value in enumerate(records.values) if value is None]
        places += [place for outcome in outcomes for place in outcome.nulls]
        parts = [part for outcome in outcomes for part in outcome.parts]
        if not places:
            self._tombstones.saw(parts)
            return []
        places.sort()
        deletes = self._tombstones.deletes(places, records.keys, parts, known=waited)
        rest = _Outcome()
        rest.aside[Aside.TOMBSTONE] = len(places) - len(deletes)
        connector = max((part.connector for part in parts), key=len, default=self._flat.connector)

        def attempt(records: Records, index: Sequence[int]) -> _Outcome:
            out = _Outcome()
            part = self._tombstones.part(records, index, connector)
            self._key(part, records)
            if parts:
                part.connector = ""
            out.parts.append(part)
            return out

        return [rest, *self._whole_or_halves(records, deletes, bad, [], attempt)]

    def _whole_or_halves(
        self,
        records: Records,
        index: Sequence[int],
        bad: list[BadRecord],
        unknown: list[UnknownColumn],
        attempt: "Callable[[Records, Sequence[int]], _Outcome]",
    ) -> "list[_Outcome]":
        done: list[_Outcome] = []
        waiting: list[Sequence[int]] = [index]
        while waiting:
            some = waiting.pop()
            if not len(some):
                continue
            try:
                done.append(attempt(records, some))
            except Fault as fault:
                if fault.certain:
                    bad.extend(fault.certain)
                    unknown.extend(_why(fault, records, min(record.index for record in fault.certain)))
                    gone = {record.index for record in fault.certain}
                    waiting.append([i for i in some if i not in gone])
                elif len(some) == 1:
                    bad.append(BadRecord(some[0], fault.reason, fault.kind, fault.column))
                    unknown.extend(_why(fault, records, some[0]))
                elif len(fault.suspects):
                    suspects = set(fault.suspects)
                    waiting.extend([i] for i in suspects)
                    waiting.append([i for i in some if i not in suspects])
                else:
                    middle = len(some) // 2
                    waiting.append(some[middle:])
                    waiting.append(some[:middle])
        return done

    def _attempt(self, records: Records, index: Sequence[int]) -> "_Outcome":
        values: list[Any] = _pick(records.values, index)
        try:
            groups = self._envelopes.split(values)
        except FramingError as error:
            raise Fault(error.message, suspects=[index[p] for p in error.places]) from error
        out = _Outcome()
        for framed, places, payloads in groups:
            own = index if places is None else [index[p] for p in places]
            if b"null" in payloads:
                alive = [i for i, payload in enumerate(payloads) if payload != b"null"]
                out.nulls.extend(own[i] for i, payload in enumerate(payloads) if payload == b"null")
                payloads, own = [payloads[i] for i in alive], [own[i] for i in alive]
                if not payloads:
                    continue
            if framed.avro is not None and self._keys.of_documents:
                framed, payloads = SCHEMALESS, _documents(framed, payloads, own)
            for read in self._without_signals(framed, payloads, own, records):
                self._key(read.part, records)
                if self._keys.of_documents:
                    take_key(read.part)
                else:
                    _key_only(read.part)
                out.parts.append(read.part)
                out.aside.update(read.aside)
                out.unknown.extend(
                    (int(records.offsets[read.part.source_index[i]]), column) for i, column in read.unknown
                )
        return out

    def _without_signals(
        self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records
    ) -> list[Read]:
        """Read a group. Rows of the signal table are set aside, if the table is another. Raises Fault."""
        try:
            reads = self._read(framed, payloads, own, records)
        except Fault:
            if self._signals and any(map(is_signal, payloads)):
                return self._signals_aside(framed, payloads, own, records)
            raise
        if not self._signals:
            return reads
        unknown = {column.name for read in reads for _, column in read.unknown}
        deletes = any((read.part.op == Op.DELETE).any() for read in reads)  # they tell no unknown column
        likely = unknown >= FIELDS - self._columns or (deletes and any(WINDOW in p for p in payloads))
        if likely and any(map(is_signal, payloads)):
            return self._signals_aside(framed, payloads, own, records)
        return reads

    def _signals_aside(self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records) -> list[Read]:
        keep = [i for i, payload in enumerate(payloads) if not is_signal(payload)]
        reads = self._read(framed, [payloads[i] for i in keep], [own[i] for i in keep], records) if keep else []
        return [*reads, Read(no_events(), Counter({Aside.WATERMARK: len(payloads) - len(keep)}), [])]

    def _read(self, framed: Framed, payloads: list[bytes], own: Sequence[int], records: Records) -> list[Read]:
        """Read a group, in the form that its schema tells or, schemaless, in that of the last one. Raises Fault."""
        if framed.schema is not None:
            return [self._read_as(self._form_of(framed.schema), framed, payloads, own, records)]
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
            framed, payloads = self._as_rows(framed), _documents(framed, payloads, own)
        headers = [None] * len(own) if records.headers is None else _pick(records.headers, own)
        return self._flat.read_rows(framed, payloads, own, headers)

    def _as_rows(self, framed: Framed) -> Framed:
        """The framing of Avro rows once they are JSON."""
        if len(self._row_framings) > _KEPT:
            self._row_framings.clear()
        return self._row_framings.setdefault(framed, Framed(framed.prefix, framed.schema))

    def _key(self, part: Part, records: Records) -> None:
        """Fill in the part's key columns: from the Kafka key, else from the row image. Raises Fault."""
        columns = self._keys.columns
        if not columns:
            return
        keys = _pick(records.keys, part.source_index.tolist())
        if all(keys):
            try:
                part.key = dict(zip(columns, self._keys.read(keys), strict=True))
                return
            except DecodeError:
                pass  # perhaps a key is the text null
        try:
            given = [key for key in keys if key is not None and key != b"null"]
            if len(given) == len(keys):
                part.key = dict(zip(columns, self._keys.read(given), strict=True))
                return
            arrays = self._keys.read(given)
        except DecodeError as error:
            suspects = [p for p, key in zip(part.source_index, keys, strict=True) if key is not None and self._bad(key)]
            raise Fault(error.message, "key", suspects=suspects if len(keys) > 1 else ()) from error
        part.key = _merge_keys(part, keys, dict(zip(columns, arrays, strict=True)), self._keys.types)

    def _bad(self, key: bytes) -> bool:
        return key != b"null" and fails(self._keys.read, [key])


def _documents(framed: Framed, values: list[bytes], places: Sequence[int]) -> list[bytes]:
    """Avro values as JSON: events of documents, whose images are JSON texts in Avro, too, and rows. Raises Fault."""
    out: list[bytes] = []
    bad: list[BadRecord] = []
    for value, place in zip(values, places, strict=True):
        try:
            out.append(as_json(framed, value))
        except DecodeError as error:
            bad.append(BadRecord(place, error.message))
    if bad:
        raise Fault(bad[0].reason, certain=bad)
    return out


class _Outcome:
    """What a successful attempt gave."""

    __slots__ = ("aside", "nulls", "parts", "unknown")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.aside: Counter[Aside] = Counter()
        self.nulls: list[int] = []
        """Records whose payload is null."""
        self.unknown: list[tuple[int, UnknownColumn]] = []


def _why(fault: Fault, records: Records, index: int) -> list[UnknownColumn]:
    """A value may be too large for the column as it is, and not for what the column is to become."""
    return [replace(column, first_offset=int(records.offsets[index])) for column in fault.unknown]


def _pick(values: Sequence[Any], index: Sequence[int]) -> list[Any]:
    """The values at ascending places."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return list(values[index[0] : index[-1] + 1])
    return [values[i] for i in index]


def _merge_keys(
    part: Part, keys: Sequence[bytes | None], given: dict[str, pa.Array], types: list[pa.DataType]
) -> dict[str, pa.Array]:
    """Key columns where some records have no Kafka key: those of truncates are null, the others the image's."""
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
            raise Fault(f"the record has no Kafka key, and no image of its row has {name!r}", "key", name)
        pool = pa.concat_arrays([array, after, before, pa.nulls(1, arrow)])
        rows = np.arange(n)
        image = np.where(deleted, len(array) + n + rows, len(array) + rows)
        where = np.where(has_key, place, np.where(truncate, len(pool) - 1, image))
        out[name] = pool.take(pa.array(where))
    return out


def _key_only(part: Part) -> None:
    """Columns that only the key has (the table that a topic router adds to it) join the images."""
    for name, array in (part.key or {}).items():
        if name in part.after or not len(part):
            continue
        gone = np.isin(part.op, (Op.DELETE, Op.TRUNCATE))
        part.after[name] = pc.if_else(pa.array(gone), pa.scalar(None, array.type), array)
        part.absent.pop(name, None)
        if part.before:
            part.before[name] = pc.if_else(pa.array(part.has_before), array, pa.scalar(None, array.type))


def _halves(records: Records) -> npt.NDArray[np.uint8]:
    """Which half of a key change each record is, by its headers (only marks: their texts are no strict JSON)."""
    half = np.zeros(len(records), dtype=np.uint8)
    if records.headers is None:
        return half
    for i, headers in enumerate(records.headers):
        if headers:
            for name, _ in headers:
                if name == _NEW_KEY:
                    half[i] = Half.DELETE
                elif name == _OLD_KEY:
                    half[i] = Half.CREATE
    return half
