"""JSON payloads of one framing to columns."""

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.aliases import with_names
from ch_sink.decode.json.columns import UNREADABLE, Fault, Read, fails, to_columns
from ch_sink.decode.json.layout import NUMBER_FOR_BYTES, Layout, build_layout
from ch_sink.decode.mongodb import document_layout, is_document_source
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable

__all__ = ["JsonReader"]

_PLACE = re.compile(r"`\$\.(after|before)\.([^`]*)`")
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*)` - at `\$\.after`", re.DOTALL)
_MISSING_FIELD = re.compile(r"missing required field `(.*)` - at `\$\.after`", re.DOTALL)
_OP = attrgetter("op")
_MOST_UNKNOWN = 1000
"""Unknown fields of schemaless rows that are followed; rows with more are bad records."""


class JsonReader:
    """Decodes groups of JSON payloads; remembers the layouts it made."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._table, self._policy, self._forms, self._before = table, policy, forms, before
        self._layouts: dict[tuple[Framed, str, bool], Layout] = {}
        self._expected = frozenset(c.name for c in table.source_columns)
        self._extras: tuple[str, ...] = ()
        self._connector = ""
        self._names = {c.name for c in table.columns}
        self._numbers = False
        """Decimals stand as numbers in JSON (``decimal.format=NUMERIC``), as one of them has shown."""

    def read(self, framed: Framed, payloads: list[bytes], places: Sequence[int]) -> Read:
        """Decode a group; ``places`` are the payloads' places in the chunk. Raises Fault, OtherForm."""
        layout: Layout | None = None
        try:
            try:
                layout, rows = self._decode(framed, payloads)
            except Fault as fault:
                fault.suspects = [places[i] for i in fault.suspects]
                raise
            if framed.schema is None:
                ops = list(map(_OP, rows))
                odd = [i for i, op in enumerate(ops) if not op] if "" in ops else ()
                if any(self._forms.of_payload(payloads[i]) is Form.FLATTENED for i in odd):
                    raise OtherForm
            return to_columns(layout, rows, payloads, places)
        except Fault as fault:
            fault.unknown = self._unknown(framed, layout)
            raise

    def _unknown(self, framed: Framed, layout: Layout | None) -> tuple[UnknownColumn, ...]:
        """What a group declares that the table lacks, though it could not be decoded."""
        known = layout or self._layouts.get((framed, self._connector, False))
        return known.unknown if known is not None else ()

    def _decode(self, framed: Framed, payloads: list[bytes]) -> tuple[Layout, list[Any]]:
        layout = self._layout(framed, self._connector)
        try:
            return layout, list(map(layout.decode, payloads))
        except UNREADABLE as error:
            fault = error
        connector = self._connector_in(payloads[0])
        if connector and connector != self._connector:
            previous, self._connector = self._connector, connector
            try:
                return self._decode(framed, payloads)
            except Fault:
                self._connector = previous
                raise
        if self._number_seen(fault):
            return self._decode(framed, payloads)
        if framed.schema is not None or not isinstance(fault, msgspec.ValidationError):
            raise _fault(fault, layout, payloads) from fault
        return self._tolerant(framed, payloads, fault)

    def _number_seen(self, fault: Exception) -> bool:
        """Whether the layouts have just learned from an error that decimals stand as numbers."""
        if self._numbers or not NUMBER_FOR_BYTES.search(str(fault)):
            return False
        self._numbers = True
        self._layouts.clear()
        return True

    def _connector_in(self, payload: bytes) -> str:
        """The connector that a payload names; empty where it names none."""
        return _peek(payload)

    def _tolerant(self, framed: Framed, payloads: list[bytes], fault: Exception) -> tuple[Layout, list[Any]]:
        """Schemaless rows that lack fields or have unknown ones."""
        while True:
            if not (_UNKNOWN_FIELD.search(str(fault)) or _MISSING_FIELD.search(str(fault))):
                raise _fault(fault, self._layout(framed, self._connector), payloads) from fault
            layout = self._layout(framed, self._connector, tolerant=True)
            try:
                rows = list(map(layout.decode, payloads))
            except UNREADABLE as error:
                if self._number_seen(error):
                    continue
                found = _UNKNOWN_FIELD.search(with_names(str(error)))
                if found is None or found[1] in self._names or len(self._extras) >= _MOST_UNKNOWN:
                    raise _fault(error, layout, payloads) from error
                fault = error
                names = _all_unknown(payloads, self._names.union(self._extras), found[1])
                self._extra(names)
                continue
            self._adapt(layout, rows)
            return layout, rows

    def _extra(self, names: Sequence[str]) -> None:
        """Expect further fields that the table lacks."""
        self._extras = (*self._extras, *names)
        self._drop_schemaless(tolerant=True)

    def _adapt(self, layout: Layout, rows: list[Any]) -> None:
        """Expect from now on the fields that the last row has: the strict layout is the faster one."""
        last = next((r.after for r in reversed(rows) if r.after is not None), None)
        if last is None or any(get(last) is not msgspec.UNSET for _, get in layout.extras):
            return
        expected = frozenset(c.name for c in layout.columns if c.get(last) is not msgspec.UNSET)
        if expected != self._expected:
            self._expected = expected
            self._drop_schemaless(tolerant=False)

    def _drop_schemaless(self, *, tolerant: bool) -> None:
        for key in [k for k in self._layouts if k[0].schema is None and k[2] is tolerant]:
            del self._layouts[key]

    def _layout(self, framed: Framed, connector: str, *, tolerant: bool = False) -> Layout:
        key = (framed, connector, tolerant)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) > 256:
                self._layouts.clear()
            try:
                layout = self._build(framed, connector, None if tolerant else self._expected)
            except DecodeError as error:
                raise Fault(error.message) from error
            self._layouts[key] = layout
        return layout

    def _build(self, framed: Framed, connector: str, expected: frozenset[str] | None) -> Layout:
        source = source_for(connector) if connector else None
        if source is not None and is_document_source(source):
            return document_layout(self._table, self._policy, source, before=self._before)
        return build_layout(
            self._table,
            self._policy.values,
            connector,
            schema=framed.schema,
            before=self._before,
            expected=expected,
            extras=self._extras if expected is None else (),
            numbers=self._numbers,
        )


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Peek(msgspec.Struct, gc=False):
    source: _Connector | None = None


_peeker = msgspec.json.Decoder(_Peek)
_connector_of = attrgetter("connector")


def _peek(payload: bytes) -> str:
    """``source.connector`` of a payload; empty where there is none."""
    try:
        found = _peeker.decode(payload).source
    except UNREADABLE:
        return ""
    return found.connector if found is not None else ""


def _all_unknown(payloads: list[bytes], known: set[str], first: str) -> list[str]:
    """Names of the row images' fields that are not known, ``first`` among them (it was seen)."""
    names: dict[str, None] = {first: None}
    for payload in payloads:
        try:
            image = _rows.decode(payload).after
        except UNREADABLE:
            continue
        if image is not None and not known.issuperset(image):
            names.update((name, None) for name in image if name not in known)
        if len(names) > _MOST_UNKNOWN:
            break
    return list(names)[:_MOST_UNKNOWN]


class _AnyRow(msgspec.Struct, gc=False):
    after: dict[str, msgspec.Raw] | None = None


_rows = msgspec.json.Decoder(_AnyRow)


def _fault(error: Exception, layout: Layout, payloads: list[bytes]) -> Fault:
    text, column = f"no JSON of a change event: {error}", None
    if isinstance(error, msgspec.ValidationError):
        text = with_names(str(error))
        place = _PLACE.search(text)
        column = place[2].split("[")[0].split(".")[0] if place else None
    elif isinstance(error, RecursionError):
        text = "the JSON is nested too deeply"
    suspects = [] if len(payloads) == 1 else [i for i, payload in enumerate(payloads) if fails(layout.decode, payload)]
    return Fault(text, column=column, suspects=suspects)
