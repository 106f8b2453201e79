"""The decoder of one topic: records to a ChangeBatch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ch_sink.decode.assemble import Part, Shape, assemble
from ch_sink.decode.event_keys import EventKeys, pick
from ch_sink.decode.framing import SCHEMALESS, Envelopes, Format, FramingError
from ch_sink.decode.json.columns import Fault
from ch_sink.decode.kafka_keys import KeyReader
from ch_sink.decode.readers import Readers, documents
from ch_sink.decode.tombstones import Tombstones
from ch_sink.decode.unknown_columns import joined
from ch_sink.errors import ConfigError
from ch_sink.model.change import Aside, BadRecord, ChangeBatch, Half, Records, Skipped, UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable

__all__ = ["Decoder"]

_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
_TOGETHER = 4096
"""Records that are decoded at a time: as many as stay in the processor's cache while they are Python objects."""
_MOST_PARTS = 8
"""More pieces than this are decoded once more as a whole when the bad records are known."""


class Decoder:
    """Turns chunks of one topic into change events. Remembers schemas and layouts between chunks.

    Some thousand records are decoded together; when that fails they are halved down to the records at fault, so a
    record means the same alone and among others.
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
        before = want_before or bool(policy.keys.columns)
        self._readers = Readers(table, policy, before=before)
        self._event_keys = EventKeys(self._keys)
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
        skipped: Skipped = {}
        values = records.values
        live: Sequence[int] = range(len(values))
        nulls: list[int] = []
        if None in values:
            live = [i for i, value in enumerate(values) if value is not None]
            nulls = [i for i, value in enumerate(values) if value is None]
        self._keys.learn(records.keys, values)
        bad: list[BadRecord] = []
        unknown: list[UnknownColumn] = []
        outcomes: list[_Outcome] = []
        # Avro is read column by column, with no object for each value between.
        first = (values[live[0]] if live else None) or b""
        together = len(live) if first.startswith(b"\0") else _TOGETHER
        for start in range(0, len(live), together):
            outcomes += self._some(records, live[start : start + together], bad, unknown)
        outcomes += self._null_values(records, nulls, outcomes, bad, waited=waited)
        parts: list[Part] = []
        for outcome in outcomes:
            parts.extend(outcome.parts)
            for kind, places in outcome.skipped.items():
                skipped.setdefault(kind, []).extend(places)
            unknown.extend(replace(column, first_offset=offset) for offset, column in outcome.unknown)
        half = _halves(records)
        key_types = dict(zip(self._keys.columns, self._keys.types, strict=True))
        return assemble(
            parts,
            self._shape,
            records.offsets,
            half,
            key_types,
            skipped,
            bad,
            joined(unknown),
        )

    def _some(
        self, records: Records, index: Sequence[int], bad: list[BadRecord], unknown: list[UnknownColumn]
    ) -> "list[_Outcome]":
        """Decode records together, as far as none of them is bad."""
        outcomes = self._whole_or_halves(records, index, bad, unknown, self._attempt)
        if len(outcomes) > _MOST_PARTS:
            failed = {b.index for b in bad}
            rest = [i for i in index if i not in failed]
            outcomes = self._whole_or_halves(records, rest, bad, unknown, self._attempt)
        return outcomes

    def _null_values(
        self,
        records: Records,
        nulls: list[int],
        outcomes: "list[_Outcome]",
        bad: list[BadRecord],
        *,
        waited: bool,
    ) -> "list[_Outcome]":
        """The null values of a chunk (``nulls``, and null payloads): deletes, and those that are set aside."""
        places = nulls + [place for outcome in outcomes for place in outcome.nulls]
        parts = [part for outcome in outcomes for part in outcome.parts]
        if not places:
            self._tombstones.saw(parts)
            return []
        places.sort()
        deletes = self._tombstones.deletes(places, records.keys, parts, known=waited)
        rest = _Outcome()
        if len(deletes) < len(places):
            gone = set(deletes)
            rest.skipped[Aside.TOMBSTONE] = [place for place in places if place not in gone]
        connector = max((part.connector for part in parts), key=len, default=self._readers.flat_connector)

        def attempt(records: Records, index: Sequence[int]) -> _Outcome:
            out = _Outcome()
            part = self._tombstones.part(records, index, connector)
            self._event_keys.give(part, records)
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
        values: list[Any] = pick(records.values, index)
        try:
            groups = self._envelopes.split(values)
        except FramingError as error:
            raise Fault(error.message, suspects=[index[p] for p in error.places]) from error
        out = _Outcome()
        for framed, places, payloads in groups:
            own = index if places is None else [index[p] for p in places]
            null = framed.null
            if null in payloads:
                alive = [i for i, payload in enumerate(payloads) if payload != null]
                out.nulls.extend(own[i] for i, payload in enumerate(payloads) if payload == null)
                payloads, own = [payloads[i] for i in alive], [own[i] for i in alive]
                if not payloads:
                    continue
            if framed.avro is not None and self._keys.of_documents:
                framed, payloads = SCHEMALESS, documents(framed, payloads, own)
            for read in self._readers.read(framed, payloads, own, records):
                self._event_keys.give(read.part, records)
                out.parts.append(read.part)
                for kind, others in read.skipped.items():
                    out.skipped.setdefault(kind, []).extend(others)
                out.unknown.extend(
                    (int(records.offsets[read.part.source_index[i]]), column) for i, column in read.unknown
                )
        return out


class _Outcome:
    """What a successful attempt gave."""

    __slots__ = ("nulls", "parts", "skipped", "unknown")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.skipped: Skipped = {}
        self.nulls: list[int] = []
        """Records whose payload is null."""
        self.unknown: list[tuple[int, UnknownColumn]] = []


def _why(fault: Fault, records: Records, index: int) -> list[UnknownColumn]:
    """A value may be too large for the column as it is, and not for what the column is to become."""
    return [replace(column, first_offset=int(records.offsets[index])) for column in fault.unknown]


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
