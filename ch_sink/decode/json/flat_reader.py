"""Reads flattened rows (the JSON after ``ExtractNewRecordState``) with the reader of row images."""

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import to_columns
from ch_sink.decode.json.flat_layout import Added, FlatLayout, FlatLayouts, HeaderFields, flat_connector, row_scanner
from ch_sink.decode.json.layout import KEPT, Layout
from ch_sink.decode.json.reader import FIRST, RowDecoder, declared_unknown
from ch_sink.decode.parts import UNREADABLE, Fault, Part, Read, as_places
from ch_sink.errors import DecodeError, StreamFailed
from ch_sink.model.change import Headers
from ch_sink.model.policy import Policy
from ch_sink.sources import FLATTENED
from ch_sink.table.model import TargetTable

_OLD_KEY = "__debezium.oldkey"
_TRUE = ("true", True, b"true")
_NO_TEXTS: dict[str, bytes] = {}
_INITIAL = frozenset((True, "true", "first", "last", "first_in_data_collection", "last_in_data_collection"))
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Event(msgspec.Struct, gc=False):
    """A row change, as the reader of envelopes returns it."""

    op: str
    after: Any
    before: Any
    source: Any


class FlatReader:
    """Decodes groups of flattened rows, each wrapped in an envelope."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._policy, self._forms = policy, forms
        self._added = Added(policy.events.fields_prefix, frozenset(c.name for c in table.source_columns))
        self._headers = HeaderFields(policy.events.headers_prefix)
        self._scanner = lru_cache(KEPT)(row_scanner)
        self._rows = RowDecoder(table, FlatLayouts(table, policy, self._added, before=before).build)

    def read(
        self,
        framed: Framed,
        payloads: list[bytes],
        places: Sequence[int],
        headers: Sequence[Headers | None],
        connector: str,
    ) -> Read:
        """Decode a group. ``headers`` are the payloads'. Raises Fault, OtherForm, and StreamFailed (see below).

        ``connector``: that of earlier rows, if the first one does not show it. An event without added fields is an
        upsert. StreamFailed: ``version.strategy: source_position`` is set and the events do not state their positions.
        """
        texts = list(map(self._headers.texts, headers)) if any(headers) else [_NO_TEXTS] * len(headers)
        names: dict[str, msgspec.Raw] = {}
        with contextlib.suppress(*UNREADABLE):
            names = _names.decode(payloads[0])
            if framed.schema is None and self._forms.of_names(names) is not Form.FLATTENED:
                raise OtherForm
        connector = self._connector(framed, names, texts[0], connector)
        try:
            return self._read(framed, payloads, places, headers, texts, connector)
        except Fault as fault:
            fault.unknown = declared_unknown(self._rows, framed, connector)
            raise

    def _read(
        self,
        framed: Framed,
        payloads: list[bytes],
        places: Sequence[int],
        headers: Sequence[Headers | None],
        texts: list[dict[str, bytes]],
        connector: str,
    ) -> Read:
        def only_rows() -> None:
            if any(self._forms.of_payload(payload) is not Form.FLATTENED for payload in payloads):
                raise OtherForm

        chosen = self._rows.choose(framed, [_wrapped(payload) for payload in payloads[:FIRST]], connector)
        scanned = self._scanned(chosen[0], payloads, places, texts) if not any(texts) else None
        if scanned is not None:
            return scanned
        wrapped = list(map(_wrapped, payloads))
        try:
            layout, rows = self._rows.decode(framed, wrapped, connector, chosen=chosen, before_lenient=only_rows)
        except Fault as fault:
            fault.suspects = [places[i] for i in fault.suspects]
            raise
        assert isinstance(layout, FlatLayout)
        images = [row.after for row in rows]
        blocks = self._blocks(layout, images, texts, places)
        self._demand_positions(layout, texts)
        events = []
        for image, block, text, found, place in zip(images, blocks, texts, headers, places, strict=True):
            try:
                events.append(self._event(layout, image, block, text, found))
            except DecodeError as error:
                raise Fault(error.message, suspects=[place]) from error
        read = to_columns(layout, events, payloads, places)
        _mark_null_values(read.part, layout, images, texts, places)
        return read

    def _scanned(
        self, layout: Layout, payloads: list[bytes], places: Sequence[int], texts: list[dict[str, bytes]]
    ) -> Read | None:
        """What the compiled scanner reads; None if the rows have to be decoded by their layout."""
        assert isinstance(layout, FlatLayout)
        scanner = self._scanner(layout)
        read = scanner.read(payloads, places) if scanner is not None else None
        if read is not None:
            self._demand_positions(layout, texts)
            if "deleted" not in layout.roles:
                _mark_null_values(read.part, layout, [], texts, places)
        return read

    def _event(
        self, flat: FlatLayout, image: Any, block: Any, texts: dict[str, bytes], headers: Headers | None
    ) -> _Event:
        given = getattr(image, flat.roles["op"]) if "op" in flat.roles else None
        if not isinstance(given, str):
            given = self._headers.values(texts, {"op": str}).get("op")
        marked = getattr(image, flat.roles["deleted"]) if "deleted" in flat.roles else None
        if marked in _TRUE or given == "d":
            return _Event("d", None, image, block)
        if given is None:
            created = any(name == _OLD_KEY for name, _ in headers or ())
            given = "c" if created else "r" if block.snapshot in _INITIAL else "u"
        return _Event(given, image, None, block)

    def _blocks(
        self, flat: FlatLayout, images: list[Any], texts: list[dict[str, bytes]], places: Sequence[int]
    ) -> list[Any]:
        """Each event's replacement for ``source``: the row itself, unless headers or columns state some of it."""
        if not flat.aliased and not any(texts) and "event_ts_ms" not in flat.roles:
            return images
        out = []
        for image, found, place in zip(images, texts, places, strict=True):
            fields = {role: getattr(image, at) for role, at in flat.roles.items() if role in flat.types}
            fields = {role: value for role, value in fields.items() if value is not None and value is not msgspec.UNSET}
            try:
                out.append(self.block(flat.stated, {**self._headers.values(found, flat.types), **fields}))
            except (DecodeError, msgspec.ValidationError) as error:
                raise Fault(str(error), "position", suspects=[place]) from error
        return out

    @staticmethod
    def block(kind: type[msgspec.Struct], stated: dict[str, Any]) -> Any:
        """A ``source`` block; without a source time it gets the connector's."""
        event_time = stated.pop("event_ts_ms", None)
        stated.setdefault("ts_ms", event_time)
        return msgspec.convert(stated, kind, strict=False)

    def _demand_positions(self, flat: FlatLayout, texts: list[dict[str, bytes]]) -> None:
        if self._policy.versions.strategy != "source_position":
            return
        needed = set(flat.flattened.fields) - flat.roles.keys()
        if flat.flattened.fields and all(needed <= found.keys() for found in texts):
            return
        raise missing_position(sorted(needed))

    def _connector(self, framed: Framed, found: dict[str, msgspec.Raw], texts: dict[str, bytes], known: str) -> str:
        """The source system of the rows: by an added field, else by the added position fields."""
        names = [f.name for f in framed.schema.fields] if framed.schema is not None else ()
        roles = self._added.roles([*names, *found])
        stated = ""
        with contextlib.suppress(DecodeError):  # reading the whole record reports the error
            stated = self._headers.values(texts, {"connector": str}).get("connector") or ""
        if "connector" in roles and roles["connector"] in found:
            raw: Any = None
            with contextlib.suppress(msgspec.DecodeError, ValueError):  # as above
                raw = msgspec.json.decode(found[roles["connector"]])
            stated = raw if isinstance(raw, str) else stated
        connector = flat_connector({*roles, *texts}, stated)
        return known if connector == FLATTENED and known else connector


def _wrapped(payload: bytes) -> bytes:
    return b'{"after":' + payload + b"}"


def _mark_null_values(
    part: Part, layout: FlatLayout, images: list[Any], texts: list[dict[str, bytes]], places: Sequence[int]
) -> None:
    """Record which rows make a later null value a delete: those without a deleted mark, true or false."""
    deleted = layout.roles.get("deleted")
    if deleted is None:
        says = np.ones(len(texts), dtype=np.bool_)
    else:
        unset, marks = msgspec.UNSET, list(map(attrgetter(deleted), images))
        if msgspec.UnsetType not in set(map(type, marks)):
            return
        says = np.array([mark is unset for mark in marks], dtype=np.bool_)
    needed = set(layout.flattened.fields)
    incomplete = np.array([not needed <= found.keys() for found in texts], dtype=np.bool_)
    own = np.searchsorted(as_places(places), part.source_index)
    part.null_deletes = says[own]
    # Null values that are deletes state no position, so positions cannot join the two halves of a key change.
    without = says[own] & incomplete[own]
    if without.any():
        part.commit, part.inner = part.commit.copy(), part.inner.copy()
        part.commit[without], part.inner[without] = 0, 0
        part.has_commit = part.has_commit & ~without


def missing_position(needed: Sequence[str]) -> StreamFailed:
    """The error if positions must order the changes but the events do not state them."""
    named = ", ".join(needed) if needed else "of any known source"
    return StreamFailed(
        f"version.strategy is source_position, and flattened events lack the fields of a position: {named}",
        hint="add them by add.fields (and add.headers, where deletes are null values) in ExtractNewRecordState, "
        "or leave version.strategy out: then the Kafka offset orders flattened events",
    )
