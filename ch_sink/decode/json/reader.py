"""JSON envelopes of one framing to columns.

A schema declares the fields of the images. Schemaless images are expected to have the fields of the first one; this is
the fast layout, in which every field is required. If it does not fit, any field may be absent, and all payloads are
searched for fields and kinds of literals that the first one does not show.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import to_columns
from ch_sink.decode.json.layout import KEPT, Layout, build_layout, with_names
from ch_sink.decode.json.scanned import Scanner, scanner
from ch_sink.decode.mongodb.events import document_layout, document_scanner, is_document_source
from ch_sink.decode.parts import UNREADABLE, Fault, Read, fails
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable

_NO_ROW = ("", "m")


@dataclass(frozen=True, slots=True)
class RowFields:
    """The fields of schemaless rows."""

    expected: frozenset[str]
    """Columns of the table that every row has, if ``strict``."""
    extras: tuple[str, ...]
    """Fields that the table lacks and that rows may have."""
    strict: bool


class JsonReader:
    """Decodes groups of JSON envelopes."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._table, self._policy, self._forms, self._before = table, policy, forms, before
        self._rows = RowDecoder(table, self._build)
        self._scanner = lru_cache(KEPT)(_scanner)

    def read(self, framed: Framed, payloads: list[bytes], places: Sequence[int], connector: str) -> Read:
        """Decode a group; ``places`` are the payloads' places in the chunk. Raises Fault, OtherForm.

        ``connector``: the connector of earlier events, for a first payload that names none.
        """
        connector = connector_in(payloads[0]) or connector
        try:
            chosen = self._rows.choose(framed, payloads, connector)
            fast = self._scanner(chosen[0])
            scanned = fast.read(payloads, places) if fast is not None else None
            if scanned is not None:
                return scanned
            try:
                layout, rows = self._rows.decode(framed, payloads, connector, chosen=chosen)
            except Fault as fault:
                fault.suspects = [places[i] for i in fault.suspects]
                raise
            ops = [row.op for row in rows]
            if framed.schema is None:
                # A logical message, or a flattened row with a column `op` of its own.
                odd = [i for i, op in enumerate(ops) if op in _NO_ROW] if "" in ops or "m" in ops else ()
                if any(self._forms.of_payload(payloads[i]) is Form.FLATTENED for i in odd):
                    raise OtherForm
            return to_columns(layout, rows, payloads, places, ops)
        except Fault as fault:
            fault.unknown = declared_unknown(self._rows, framed, connector)
            raise

    def _build(self, framed: Framed, connector: str, fields: RowFields | None) -> Layout:
        source = source_for(connector)
        if is_document_source(source):
            return document_layout(self._table, self._policy, source, before=self._before)
        return build_layout(
            self._table,
            self._policy.values,
            connector,
            schema=framed.schema,
            before=self._before,
            expected=fields.expected if fields is not None and fields.strict else None,
            extras=fields.extras if fields is not None else (),
        )


def _scanner(layout: Layout) -> Scanner | None:
    return scanner(layout) if layout.images is None else document_scanner(layout)


Build = Callable[[Framed, str, RowFields | None], Layout]
"""Makes the layout of a framing for a connector: of schemaless rows with these fields. Raises DecodeError."""
Chosen = tuple[Layout, RowFields | None]
"""A layout, and by which fields it was chosen."""
Row = dict[str, msgspec.Raw]


class RowDecoder:
    """Decodes groups of payloads with row images of one table."""

    def __init__(self, table: TargetTable, build: Build) -> None:
        self._build = build
        self._columns = frozenset(c.name for c in table.source_columns)
        self._names = frozenset(c.name for c in table.columns)
        self._every = RowFields(self._columns, (), strict=True)
        self.layout = lru_cache(KEPT)(self._layout)

    def decode(
        self,
        framed: Framed,
        payloads: list[bytes],
        connector: str,
        *,
        chosen: Chosen,
        before_lenient: Callable[[], None] | None = None,
    ) -> tuple[Layout, list[Any]]:
        """The payloads' Structs, and their layout. Raises Fault, whose suspects are places in ``payloads``.

        ``chosen``: the layout to try first.
        ``before_lenient``: called before schemaless rows are read that do not all have the same fields.
        """
        layout, fields = chosen
        try:
            return layout, list(map(layout.decode, payloads))
        except UNREADABLE as error:
            fault = error
        if layout.images is not None or not isinstance(fault, msgspec.ValidationError):
            raise _fault(fault, layout, payloads) from fault
        if fields is not None:
            if before_lenient is not None:
                before_lenient()
            lenient = self.layout(framed, connector, RowFields(self._columns, fields.extras, strict=False))
            try:
                return lenient, list(map(lenient.decode, payloads))
            except UNREADABLE:
                pass
        return self._after_survey(framed, payloads, connector, fields, fault)

    def choose(self, framed: Framed, payloads: list[bytes], connector: str) -> Chosen:
        """The layout that is tried first: that of payloads whose rows are all like the first one. Raises Fault."""
        fields = self._fields_of(first_row(payloads)) if framed.schema is None else None
        return self.layout(framed, connector, fields), fields

    def _after_survey(
        self,
        framed: Framed,
        payloads: list[bytes],
        connector: str,
        fields: RowFields | None,
        fault: Exception,
    ) -> tuple[Layout, list[Any]]:
        """Decode by the layout that all payloads together require. Raises Fault."""
        seen = survey(payloads, self._names)
        if seen.most > _MOST_UNKNOWN:
            reason = f"the row has more than {_MOST_UNKNOWN} fields that the table lacks"
            raise Fault(reason, suspects=self._with_many_fields(payloads))
        if fields is not None:
            extras = tuple(name for name in seen.names if name not in self._names)
            fields = RowFields(self._columns, extras, strict=False)
        layout = self.layout(framed, connector, fields)
        try:
            return layout, list(map(layout.decode, payloads))
        except UNREADABLE as error:
            raise _fault(error, layout, payloads) from fault

    def _with_many_fields(self, payloads: list[bytes]) -> list[int]:
        if len(payloads) == 1:
            return []
        looks = (survey([payload], self._names) for payload in payloads)
        return [i for i, look in enumerate(looks) if look.most > _MOST_UNKNOWN]

    def _fields_of(self, row: Row | None) -> RowFields:
        """The fields of rows like this one."""
        if row is None:
            return self._every
        expected = self._columns.intersection(row)
        extras = tuple(name for name in row if name not in self._names) if len(expected) < len(row) else ()
        return RowFields(expected, extras[:_MOST_UNKNOWN], strict=True)

    def _layout(self, framed: Framed, connector: str, fields: RowFields | None) -> Layout:
        try:
            return self._build(framed, connector, fields)
        except DecodeError as error:
            raise Fault(error.message) from error


def declared_unknown(rows: RowDecoder, framed: Framed, connector: str) -> tuple[UnknownColumn, ...]:
    """Fields of a group's schema that the table lacks, a possible reason why the group cannot be decoded."""
    if framed.schema is None:
        return ()
    try:
        return rows.layout(framed, connector, None).row.unknown
    except Fault:
        return ()


_MOST_UNKNOWN = 1000
"""Fields of a schemaless row that the table may lack; a row with more is a bad record."""


def _fault(error: Exception, layout: Layout, payloads: list[bytes]) -> Fault:
    text, column = f"not the JSON of a change event: {error}", None
    if isinstance(error, msgspec.ValidationError):
        text = with_names(str(error))
        column = _column_in(text)
    elif isinstance(error, RecursionError):
        text = "the JSON is nested too deeply"
    suspects = [] if len(payloads) == 1 else [i for i, payload in enumerate(payloads) if fails(layout.decode, payload)]
    return Fault(text, column=column, suspects=suspects)


def _column_in(text: str) -> str | None:
    """The column that msgspec's message names by its path; only the dead letter shows it, nothing depends on it."""
    for image in ("after", "before"):
        _, found, rest = text.partition(f"`$.{image}.")
        if found:
            return rest.partition("`")[0].split("[")[0].split(".")[0]
    return None


_NULL = msgspec.Raw(b"null")
FIRST = 16
"""How many payloads are searched for the first after image: deletes have none."""


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Source(msgspec.Struct, gc=False):
    source: _Connector | None = None


class _Images(msgspec.Struct, gc=False):
    after: msgspec.Raw = _NULL


_sources = msgspec.json.Decoder(_Source)
_images = msgspec.json.Decoder(_Images)
_fields = msgspec.json.Decoder(Row | None)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the rows of several payloads look like."""

    names: tuple[str, ...]
    """Fields of the after images, in the order of first appearance."""
    most: int
    """The highest number of fields in one after image that the table lacks."""


def connector_in(payload: bytes) -> str:
    """``source.connector`` of a payload; empty if it has none."""
    try:
        found = _sources.decode(payload).source
    except UNREADABLE:
        return ""
    return found.connector if found is not None else ""


def row_of(payload: bytes) -> Row | None:
    """The fields of a payload's after image; None if it has none."""
    try:
        row: Row | None = _fields.decode(_images.decode(payload).after)
    except UNREADABLE:
        return None
    return row


def first_row(payloads: Sequence[bytes]) -> Row | None:
    """The fields of the first after image among the first payloads."""
    for payload in payloads[:FIRST]:
        row = row_of(payload)
        if row is not None:
            return row
    return None


def survey(payloads: Iterable[bytes], known: Collection[str]) -> Survey:
    """Survey all payloads; those that are not the JSON of an event are ignored.

    ``known``: fields that the table has.
    """
    names: dict[str, None] = {}
    most = 0
    own = frozenset(known)
    for payload in payloads:
        row = row_of(payload)
        if row is not None:
            names.update(dict.fromkeys(row))
            most = max(most, len(row.keys() - own))
    return Survey(tuple(names), most)
