"""JSON envelopes of one framing to columns."""

from collections.abc import Sequence

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import Fault, Read, to_columns
from ch_sink.decode.json.layout import Layout, build_layout
from ch_sink.decode.json.row_decoder import RowDecoder, RowFields
from ch_sink.decode.json.scanned import Scanner, Scanners, scanner
from ch_sink.decode.json.survey import connector_in
from ch_sink.decode.mongodb import document_layout, document_scanner, is_document_source
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.sources import source_for
from ch_sink.table.model import TargetTable

__all__ = ["JsonReader", "declared_unknown"]

_NO_ROW = ("", "m")


class JsonReader:
    """Decodes groups of JSON envelopes."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._table, self._policy, self._forms, self._before = table, policy, forms, before
        self._rows = RowDecoder(table, self._build)
        self._scanners = Scanners(_scanner)

    def read(self, framed: Framed, payloads: list[bytes], places: Sequence[int], connector: str) -> Read:
        """Decode a group; ``places`` are the payloads' places in the chunk. Raises Fault, OtherForm.

        ``connector``: the connector of earlier events, for a first payload that names none.
        """
        connector = connector_in(payloads[0]) or connector
        try:
            chosen = self._rows.choose(framed, payloads, connector)
            fast = self._scanners.of(chosen[0])
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

    def _build(self, framed: Framed, connector: str, fields: RowFields | None, numbers: bool) -> Layout:
        source = source_for(connector) if connector else None
        if source is not None and is_document_source(source):
            return document_layout(self._table, self._policy, source, before=self._before)
        return build_layout(
            self._table,
            self._policy.values,
            connector,
            schema=framed.schema,
            before=self._before,
            expected=fields.expected if fields is not None and fields.strict else None,
            extras=fields.extras if fields is not None else (),
            numbers=numbers,
        )


def _scanner(layout: Layout) -> Scanner | None:
    return scanner(layout) if layout.images is None else document_scanner(layout)


def declared_unknown(rows: RowDecoder, framed: Framed, connector: str) -> tuple[UnknownColumn, ...]:
    """Fields of a group's schema that the table lacks, a possible reason why the group cannot be decoded."""
    if framed.schema is None:
        return ()
    try:
        return rows.layout(framed, connector, None, False).unknown
    except Fault:
        return ()
