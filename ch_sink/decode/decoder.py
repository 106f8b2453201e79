"""The decoder of one topic: records and their profile to a ChangeBatch."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_keys import KeyLearner, KeyReader, give_key, pick
from ch_sink.decode.framing import SCHEMALESS, Envelopes, Format, FramingError
from ch_sink.decode.key_layouts import KeyForm, KeyLayouts, key_forms
from ch_sink.decode.mongodb.columns import DocumentKeys
from ch_sink.decode.parts import Attempt, Fault, Found, Part, Shape, assemble, isolate, unless_bad
from ch_sink.decode.readers import Readers, Tombstones, avro_as_json
from ch_sink.decode.unknown_columns import joined
from ch_sink.errors import ConfigError, DecodeError
from ch_sink.model.change import ChangeBatch, Half, Records, Skipped
from ch_sink.model.policy import ROUTED_TABLE, Policy, TopicProfile
from ch_sink.model.values import Enclosed, Values, inner
from ch_sink.ports import History, SchemaRegistry
from ch_sink.sources import RefusedConnector, refusal_of_cells
from ch_sink.table.model import TargetTable

_plain = msgspec.json.Decoder(float_hook=Decimal)  # a number may be beyond those of Python
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
_TOGETHER = 4096
"""Records decoded at a time: as many as fit in the processor's cache as Python objects …"""
_WIDE, _WIDE_TOGETHER = 32, 2048
"""… and of rows with more columns than this."""
_AVRO_TOGETHER = 16_384
"""The same for Avro, which is read column by column, without a Python object per value."""
_LOOK_BACK = 10_000
"""How many earlier records are searched for a row, which shows what the first null values mean."""


class Decoder:
    """Turns chunks of one topic into change events.

    Decoding is a function of the table, the policy, the registry's schemas, the records and their profile: what a
    decoder keeps between chunks are layouts and schemas, which never change what a record means. Some thousand records
    are decoded together; when that fails, the records at fault are found and judged alone.
    """

    def __init__(
        self,
        table: TargetTable,
        policy: Policy,
        *,
        want_before: bool = False,
        format: Format = "auto",  # noqa: A002
        registry: SchemaRegistry | None = None,
        key: tuple[str, ...] = (),
    ) -> None:
        """``format``: the only format that values may have; key formats are always detected. Raises ConfigError.

        ``registry``: holds the schemas of Avro values and keys; without it such records are bad.
        ``key``: the columns of the key, if they are known before the first record shows them.
        """
        if format not in ("auto", "json", "avro"):
            raise ConfigError(f"format {format!r} cannot be decoded", hint="choose auto, json or avro")
        self._table, self._policy = table, policy
        self._shape = Shape(table.source_columns, want_before)
        self._together = _TOGETHER if len(table.source_columns) <= _WIDE else _WIDE_TOGETHER
        self._envelopes = Envelopes(registry, format)
        self._key_envelopes = Envelopes(registry)
        self._key_layouts = KeyLayouts(table, policy)
        self._learner = KeyLearner(table, policy, self._key_layouts, self._key_envelopes, Envelopes(registry))
        # Without Kafka keys the before image holds a delete's key.
        self._readers = Readers(table, policy, before=want_before or bool(policy.keys.columns))
        self._tombstones = Tombstones(policy)
        self._keys = lru_cache(16)(self._key_reader)
        self._first = TopicProfile(
            key_columns=key or policy.keys.columns,
            key_source="row" if key and not policy.keys.columns else "",
            choices=digest(table, policy),
        )

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """The profile for these records: the given one, extended by what these records are the first to show.

        ``history``: earlier records, read once if these have null values and no row shows what they mean. Raises what
        `decode` raises.
        """
        learned = self._learner.learn(records, self._valid(profile))
        if learned.connector:
            return learned
        part = self._first_row(records, learned)
        if part is not None:
            self._expect_values(records.values[int(part.source_index[0])], part.connector)
            says = part.null_deletes is not None and bool(part.null_deletes[0])
            return replace(learned, connector=part.connector, null_deletes=says)
        undecided = self._policy.events.tombstones == "auto" and (None in records.values or b"null" in records.values)
        if history is None or learned.looked_back or not undecided:
            return learned
        earlier = history.before(int(records.offsets[0]), _LOOK_BACK)
        learned = replace(self.learn(earlier, learned), looked_back=True)
        return learned.after(self.decode(earlier, learned))

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """Change events of a chunk, in Kafka order, with the records that change no row and the bad ones.

        Args:
            profile: the result of `learn` for these records; None if only these records themselves are known.
            waited: the records come from the pending table; null values among them are deletes.

        Raises TableError if a column of the table cannot take the source's type at all, RegistryError if the schema
        registry cannot be reached, StreamFailed if positions must order the changes and flattened events lack them.
        """
        profile = self.learn(records) if profile is None else profile
        reader, self._key_layouts.read_as = self._keys(profile), {}
        values = inner(records.values)
        live: Sequence[int] = range(len(values))
        nulls: list[int] = []
        if not all(values):
            live = [i for i, value in enumerate(values) if value is not None]
            nulls = [i for i, value in enumerate(values) if value is None]
        found = Found()
        first = (records.values[live[0]] if live else None) or b""
        together = _AVRO_TOGETHER if first.startswith(b"\0") else self._together
        for start in range(0, len(live), together):
            found.add(self._values(records, live[start : start + together], profile, reader))
        found.add(self._null_values(records, nulls, found, profile, reader, waited=waited))
        batch = assemble(
            found.parts,
            self._shape,
            records.offsets,
            _halves(records),
            dict(zip(reader.columns, reader.types, strict=True)),
            found.skipped,
            found.bad,
            joined(found.unknown),
        )
        batch.key_read_as = self._key_layouts.read_as
        return batch

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """The values of each Kafka key, which are equal for keys of one row; None for a key that cannot be read."""
        return self._keys(profile).values(keys)

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        """The forms of Kafka keys: see `ch_sink.decode.key_layouts.key_forms`."""
        ignored = {*self._policy.keys.ignored} - ({ROUTED_TABLE} if self._policy.events.of_one_table else set())
        return key_forms(keys, self._key_envelopes, ignored)

    def _valid(self, profile: TopicProfile | None) -> TopicProfile:
        """The profile, or an empty one if it was learned with another configuration or table."""
        if profile is None or profile.choices != self._first.choices:
            return self._first
        columns = (self._table.column(name) for name in profile.key_columns)
        return profile if all(c is not None and c.insertable for c in columns) else self._first

    def _key_reader(self, profile: TopicProfile) -> KeyReader:
        keys = DocumentKeys(self._table, self._policy) if profile.documents else None
        return KeyReader(self._key_layouts, self._key_envelopes, profile, keys)

    def _expect_values(self, value: bytes | None, connector: str) -> None:
        """Raises RefusedConnector if the columns of a row are cells: objects of a value and a flag that it was set."""
        found: Any = unless_bad(None, lambda: _plain.decode(as_json(*self._envelopes.one(value or b"null"))))
        images = [found.get("after"), found.get("before")] if isinstance(found, dict) else []
        for refused in filter(None, (refusal_of_cells(connector, image) for image in images)):
            raise refused

    def _first_row(self, records: Records, profile: TopicProfile) -> Part | None:
        """The part that holds the first row that can be decoded."""
        live = [i for i, value in enumerate(inner(records.values)) if value is not None]
        reader = self._keys(profile)
        start, together = 0, 1
        while start < len(live):
            found = self._values(records, live[start : start + together], profile, reader)
            rows = [part for part in found.parts if len(part)]
            if rows:
                return min(rows, key=lambda part: int(part.source_index[0]))
            start, together = start + together, min(together * 4, self._together)
        return None

    def _values(self, records: Records, index: Sequence[int], profile: TopicProfile, reader: KeyReader) -> Found:
        return _isolated(records, index, profile, lambda records, some: self._attempt(records, some, profile, reader))

    def _null_values(
        self,
        records: Records,
        nulls: list[int],
        found: Found,
        profile: TopicProfile,
        reader: KeyReader,
        *,
        waited: bool,
    ) -> Found:
        """The null values of a chunk (``nulls``, and null payloads): deletes and tombstones."""
        places = sorted(nulls + found.nulls)
        if not places:
            return Found()
        parts = found.parts
        keyless = any(len(part) and part.key is None for part in parts)
        deletes = self._tombstones.deletes(
            places, records.keys, parts, known=waited, before=profile.null_deletes, keyless=keyless
        )
        connector = max((part.connector for part in parts), key=len, default=profile.connector)

        def attempt(records: Records, index: Sequence[int]) -> Found:
            part = self._tombstones.part(records, index, connector)
            part.connector = connector or part.connector
            give_key(part, records, reader)
            return Found(parts=[part])

        out = _isolated(records, deletes, profile, attempt)
        if len(deletes) < len(places):
            gone = set(deletes)
            out.skip({Skipped.TOMBSTONE: [place for place in places if place not in gone]})
        return out

    def _attempt(self, records: Records, index: Sequence[int], profile: TopicProfile, reader: KeyReader) -> Found:
        try:
            groups = self._envelopes.split(_at(records.values, index))
        except FramingError as error:
            raise Fault(error.message, suspects=[index[p] for p in error.places]) from error
        out = Found()
        for framed, places, payloads in groups:
            own = index if places is None else [index[p] for p in places]
            null = framed.null
            if null in payloads:
                alive = [i for i, payload in enumerate(payloads) if payload != null]
                out.nulls.extend(own[i] for i, payload in enumerate(payloads) if payload == null)
                payloads, own = [payloads[i] for i in alive], [own[i] for i in alive]
                if not payloads:
                    continue
            if framed.avro is not None and profile.documents:
                framed, payloads = SCHEMALESS, avro_as_json(framed, payloads, own)
            for read in self._readers.read(framed, payloads, own, records, profile):
                known = profile.connector or not read.part.connector
                own_reader = reader if known else self._keys(replace(profile, connector=read.part.connector))
                give_key(read.part, records, own_reader)
                out.parts.append(read.part)
                out.skip(read.skipped)
                at = records.offsets[read.part.source_index]
                out.unknown.extend(replace(column, first_offset=int(at[i])) for i, column in read.unknown)
        return out


def _isolated(records: Records, index: Sequence[int], profile: TopicProfile, attempt: Attempt) -> Found:
    """As `isolate`; once the topic's connector is known, an event that names a refused one is a bad record."""

    def one(records: Records, some: Sequence[int]) -> Found:
        try:
            return attempt(records, some)
        except RefusedConnector as error:
            if not profile.connector:
                raise
            raise DecodeError(error.message) from error

    return isolate(records, index, one)


def digest(table: TargetTable, policy: Policy) -> str:
    """The settings that decide what records show: if they change, everything is learned again.

    The sorting key is one of them: after a change of a topic's key, the table is recreated with the new sorting key.
    """
    events = policy.events
    chosen = (policy.keys, events.form, events.tombstones, events.fields_prefix, events.headers_prefix)
    return sha256(repr((chosen, policy.documents.columns, table.sorting_key)).encode()).hexdigest()[:12]


def _at(values: Values, index: Sequence[int]) -> Any:
    """The values at ascending places, none of which is null."""
    if isinstance(values, Enclosed):
        return Enclosed(pick(values.heads, index), pick(values.parts, index))
    return pick(values, index)


def _halves(records: Records) -> npt.NDArray[np.uint8]:
    """The half of a key change that each record is, by the presence of headers (their content is not strict JSON)."""
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
