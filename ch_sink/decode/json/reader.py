"""JSON envelopes of one framing to columns."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import to_columns
from ch_sink.decode.json.layout import KEPT, Layout, build_layout
from ch_sink.decode.json.scanned import Scanner, scanner
from ch_sink.decode.mongodb.events import document_layout, document_scanner, is_document_source
from ch_sink.decode.parts import UNREADABLE, Fault, Read
from ch_sink.errors import DecodeError
from ch_sink.model.policy import Policy
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable

_NO_ROW = ("", "m")


class JsonReader:
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
                odd = [i for i, op in enumerate(ops) if op in _NO_ROW] if "" in ops or "m" in ops else ()
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


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Source(msgspec.Struct, gc=False):
    source: _Connector | None = None


_sources = msgspec.json.Decoder(_Source)


def connector_in(payload: bytes) -> str:
    """``source.connector`` of a payload; empty if it has none."""
    try:
        found = _sources.decode(payload).source
    except UNREADABLE:
        return ""
    return found.connector if found is not None else ""
