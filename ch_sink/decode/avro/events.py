"""Avro datums of one schema to columns."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.decode.avro.columns import AvroLayout, Block, build_layout, convert, is_envelope, listed
from ch_sink.decode.avro.definition import UNREADABLE, Unreadable, read_group, reader
from ch_sink.decode.avro.schema import Node, within
from ch_sink.decode.avro.vectors import Mask, Struct
from ch_sink.decode.event_form import classify, classify_document, row_operations
from ch_sink.decode.framing import AVRO_HEAD, Framed
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, add_column, meta
from ch_sink.decode.parts import Fault, Read, no_events, skipped
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.table.model import TargetTable
from ch_sink.types.column import ValuePolicy
from ch_sink.types.text_columns import spelled


def document(framed: Framed, value: bytes) -> Any:
    """One value as plain Python objects. Raises DecodeError if it does not follow its schema."""
    found = _last_document(framed, value)
    if isinstance(found, DecodeError):
        raise found
    return found


@lru_cache(maxsize=1)
def _last_document(framed: Framed, value: bytes) -> Any:
    """The same, with the error as a result. What a record that is not a plain change is, is asked four times."""
    assert framed.avro is not None
    try:
        found, end = reader(framed.avro)(value, AVRO_HEAD)
    except UNREADABLE as error:
        return DecodeError(f"{_mismatch(framed)}: {'it ends early' if isinstance(error, IndexError) else error}")
    return found if end == len(value) else DecodeError(_mismatch(framed))


def as_json(framed: Framed, payload: bytes, names: Mapping[str, str] | None = None) -> bytes:
    """A payload as Connect's JSON converter would write it; ``names``: new names of fields of an Avro record.

    Raises DecodeError if an Avro value does not follow its schema.
    """
    if framed.avro is None:
        return payload
    found = document(framed, payload)
    if names:
        found = {names.get(name, name): value for name, value in found.items()}
    return msgspec.json.encode(spelled(found) if _has_floats(framed.avro) else found)


@lru_cache(maxsize=1024)
def _has_floats(node: Node) -> bool:
    return any(one.kind in ("float", "double") for one in within(node))


class AvroReader:
    """Decodes groups of Avro values."""

    def __init__(self, table: TargetTable, policy: ValuePolicy, *, before: bool) -> None:
        self._table, self._policy, self._before = table, policy, before
        self._layout = lru_cache(maxsize=256)(self._make_layout)
        self._connectors: dict[Framed, str] = {}
        """The connector of the last values of each schema; a layout for the two exists."""

    def read(self, framed: Framed, values: list[bytes], places: Sequence[int]) -> Read:
        """Decode a group; ``places`` are the values' places in the chunk. Raises Fault, RegistryError."""
        assert framed.avro is not None
        if not is_envelope(framed.avro):
            return self._documents(framed, values, places)
        expected = self._connectors.get(framed, "")
        layout = self._layout(framed, expected)
        if isinstance(layout, str):
            raise Fault(layout)
        try:
            record = read_group(framed.avro, values, layout.program, layout.want)
        except Unreadable as error:
            raise Fault(_mismatch(framed), suspects=[places[i] for i in error.places]) from error
        assert isinstance(record, Struct)
        source = _source(record, places)
        connectors = listed(source.fields.get("connector"), len(values), None, places)
        if connectors.count(expected) != len(connectors) or (connectors and not expected):
            return self._other_connector(framed, values, places, connectors)
        op, others = _operations(record, places)
        if others:
            return self._skip_others(others, framed, values, places)
        try:
            return _columns(layout, record, source, op, places)
        except Fault as fault:
            fault.unknown = layout.unknown
            raise

    def _documents(self, framed: Framed, values: list[bytes], places: Sequence[int]) -> Read:
        """Records that are not change events: skipped by their kind."""
        found = skipped(lambda value: classify_document(document(framed, value)), values, places)
        return Read(no_events(), found, [])

    def _other_connector(self, framed: Framed, values: list[bytes], places: Sequence[int], found: list[Any]) -> Read:
        """Decode by the first record's connector. Raises Fault if another record has a different one."""
        first = found[0]
        suspects = [place for place, connector in zip(places, found, strict=True) if connector != first]
        if suspects:
            raise Fault("the records of one topic come from several connectors", suspects=suspects)
        if not first:
            raise Fault(f"source.connector {first!r} is not supported", suspects=places)
        if isinstance(refused := self._layout(framed, first), str):
            raise Fault(refused)
        self._connectors[framed] = first
        return self.read(framed, values, places)

    def _skip_others(self, others: dict[int, str], framed: Framed, values: list[bytes], places: Sequence[int]) -> Read:
        """Decode the other records; those whose operation changes no row are skipped."""
        own = [places[i] for i in others]
        gone = skipped(lambda operation: classify(operation, b""), list(others.values()), own)
        keep = [i for i in range(len(values)) if i not in others]
        if not keep:
            return Read(no_events(), gone, [])
        rest = self.read(framed, [values[i] for i in keep], [places[i] for i in keep])
        for kind, found in gone.items():
            rest.skipped.setdefault(kind, []).extend(found)
        return rest

    def _make_layout(self, framed: Framed, connector: str) -> AvroLayout | str:
        """The layout, or why there is none: which each record of the schema would find out alone."""
        assert framed.schema is not None
        assert framed.avro is not None
        try:
            return build_layout(
                self._table, self._policy, connector, node=framed.avro, schema=framed.schema, before=self._before
            )
        except DecodeError as error:
            return error.message


def _columns(layout: AvroLayout, record: Struct, source: Struct, op: Any, places: Sequence[int]) -> Read:
    """The columns of row changes whose datums were read. Raises Fault."""
    blocks = Block(source, layout.source.wire, dict(layout.block), places)
    part = meta(layout.connector, layout.source, blocks, op, places)
    after, before = record.fields.get("after"), record.fields.get("before")
    is_row: Mask = NEEDS_AFTER[op]
    lacking = is_row & ~after.present() if isinstance(after, Struct) else is_row
    if lacking.any():
        wrong = np.nonzero(lacking)[0].tolist()
        reason = f"operation {chr(int(op[wrong[0]]))!r} without an after image"
        raise Fault(reason, suspects=[places[i] for i in wrong])
    if isinstance(after, Struct):
        after.only(is_row)
        for column in layout.columns:
            values = convert(column.name, column.converter, after.fields[column.field], places)
            add_column(part, column.name, values)
    for name in layout.missing:
        part.absent[name] = is_row.copy()
    if isinstance(before, Struct):
        part.has_before = before.present().copy()
        if layout.before and part.has_before.any():
            part.before = {
                c.name: convert(c.name, c.converter, before.fields[c.field], places).array for c in layout.columns
            }
            part.absent_before = {name: part.has_before.copy() for name in layout.missing}
    unknown: list[tuple[int, UnknownColumn]] = []
    # Decoded before images count: one is the row that is taken back where a table has no key.
    having = is_row | part.has_before if layout.before else is_row
    if layout.unknown and having.any():
        unknown = [(int(np.argmax(having)), column) for column in layout.unknown]
    return Read(part, {}, unknown)


def _source(record: Struct, places: Sequence[int]) -> Struct:
    source = record.fields.get("source")
    there = source.present() if isinstance(source, Struct) else np.zeros(len(places), dtype=np.bool_)
    if not there.all():
        suspects = [places[i] for i in np.nonzero(~there)[0].tolist()]
        raise Fault("the change event has no source block", suspects=suspects)
    assert isinstance(source, Struct)
    return source


def _operations(record: Struct, places: Sequence[int]) -> tuple[npt.NDArray[np.uint8], dict[int, str]]:
    """Operations as ordinals of their letters, and those that change no row, by place in the group. Raises Fault."""
    vector = record.fields["op"]
    letters = vector.letters()
    if letters is not None and IS_ROW[letters].all():
        return letters, {}
    found = listed(vector, len(places), "", places)
    if row_operations.issuperset(set(found)):
        return np.frombuffer("".join(found).encode(), dtype=np.uint8), {}
    others = {i: operation for i, operation in enumerate(found) if operation not in row_operations}
    wrong = [i for i, operation in others.items() if not operation]
    if wrong:
        raise Fault("the change event has no operation", suspects=[places[i] for i in wrong])
    return np.zeros(len(found), dtype=np.uint8), others


def _mismatch(framed: Framed) -> str:
    schema_id = int.from_bytes(framed.prefix[1:AVRO_HEAD], "big", signed=True)
    return f"the bytes do not follow schema id {schema_id}, which they name"
