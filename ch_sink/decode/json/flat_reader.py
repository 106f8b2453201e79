"""Reads flattened rows (the JSON after ``ExtractNewRecordState``) with the reader of row images."""

import contextlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import to_columns
from ch_sink.decode.json.flat_layout import (
    Added,
    FlatLayout,
    HeaderFields,
    flat_connector,
    flat_layout,
    row_scanner,
)
from ch_sink.decode.json.layout import KEPT, Image, literals, texts_of
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
_names = msgspec.json.Decoder(Image)


class _Event(msgspec.Struct, gc=False):
    """A row change, as the reader of envelopes returns it."""

    op: str
    after: Image | None
    before: Image | None
    source: Any


class FlatReader:
    """Decodes groups of flattened rows."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        self._policy, self._forms = policy, forms
        added = Added(policy.events.fields_prefix)
        self._added, self._headers = added, HeaderFields(policy.events.headers_prefix)
        self._scanner = lru_cache(KEPT)(row_scanner)

        def build(framed: Framed, connector: str) -> FlatLayout:
            return flat_layout(table, policy, added, framed, connector, before=before)

        self._layout = lru_cache(KEPT)(build)

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
        names: Image = {}
        with contextlib.suppress(*UNREADABLE):
            names = _names.decode(payloads[0])
            self._expect_rows(framed, [names])
        connector = self._connector(framed, names, texts[0], connector)
        try:
            layout = self._layout(framed, connector)
        except DecodeError as error:
            raise Fault(error.message) from error
        try:
            roles = self._roles(framed, names)
            scanned = self._scanned(layout, roles, payloads, places, texts) if not any(texts) else None
            return scanned or self._read(layout, framed, payloads, places, headers, texts)
        except Fault as fault:
            fault.unknown = layout.row.unknown
            raise

    def _read(
        self,
        layout: FlatLayout,
        framed: Framed,
        payloads: list[bytes],
        places: Sequence[int],
        headers: Sequence[Headers | None],
        texts: list[dict[str, bytes]],
    ) -> Read:
        try:
            images: list[Image] = layout.decoded(payloads)
            self._expect_rows(framed, set(map(tuple, images)))
            roles = self._roles(framed, dict.fromkeys(chain.from_iterable(images)))
            stated = {
                role: literals(name, layout.type_of(role, name), texts_of(images, name)) for role, name in roles.items()
            }
        except Fault as fault:
            fault.suspects = [places[i] for i in fault.suspects]
            raise
        self._demand_positions(layout, roles, texts)
        blocks = self._blocks(layout, roles, stated, texts, places)
        events = []
        for i, (image, block, place) in enumerate(zip(images, blocks, places, strict=True)):
            try:
                op = self._operation(stated, i, block, texts[i], headers[i])
            except DecodeError as error:
                raise Fault(error.message, suspects=[place]) from error
            events.append(_Event("d", None, image, block) if op == "d" else _Event(op, image, None, block))
        read = to_columns(layout, events, payloads, places)
        _mark_null_values(read.part, layout, roles.get("deleted"), images, texts, places)
        return read

    def _roles(self, framed: Framed, names: Iterable[str]) -> dict[str, str]:
        """The roles of added fields: those of the schema, else of rows with these names."""
        return self._added.roles(names if framed.schema is None else [f.name for f in framed.schema.fields])

    def _expect_rows(self, framed: Framed, rows: Iterable[Iterable[str]]) -> None:
        """Raises OtherForm if one of these is not a row by its names: without a schema each is judged by itself."""
        if framed.schema is None and any(self._forms.of_names(list(names)) is not Form.FLATTENED for names in rows):
            raise OtherForm

    def _scanned(
        self,
        layout: FlatLayout,
        roles: dict[str, str],
        payloads: list[bytes],
        places: Sequence[int],
        texts: list[dict[str, bytes]],
    ) -> Read | None:
        """The values that the compiled scanner reads; None if the rows have to be decoded by their layout."""
        scanner = self._scanner(layout, tuple(roles.items()))
        read = scanner.read(payloads, places) if scanner is not None else None
        if read is not None:
            self._demand_positions(layout, roles, texts)
            if "deleted" not in roles:
                _mark_null_values(read.part, layout, None, [], texts, places)
        return read

    def _operation(
        self, stated: dict[str, list[Any]], i: int, block: Any, texts: dict[str, bytes], headers: Headers | None
    ) -> str:
        given = stated["op"][i] if "op" in stated else None
        if not isinstance(given, str):
            given = self._headers.values(texts, {"op": str}).get("op")
        if "deleted" in stated and stated["deleted"][i] in _TRUE:
            return "d"
        if given is not None:
            return str(given)
        created = any(name == _OLD_KEY for name, _ in headers or ())
        return "c" if created else "r" if block.snapshot in _INITIAL else "u"

    def _blocks(
        self,
        layout: FlatLayout,
        roles: dict[str, str],
        stated: dict[str, list[Any]],
        texts: list[dict[str, bytes]],
        places: Sequence[int],
    ) -> list[Any]:
        """The replacements for ``source``; without a source time they get the connector's. Raises Fault."""
        nothing = [None] * len(places)
        rows = zip(*(stated.get(role, nothing) for role in layout.types), strict=True)
        typed = all(layout.type_of(role, name) is not Any for role, name in roles.items())
        if typed and not any(texts) and "event_ts_ms" not in stated:
            return [layout.stated(*row) for row in rows]
        out = []
        for row, found, place in zip(rows, texts, places, strict=True):
            own = {role: value for role, value in zip(layout.types, row, strict=True) if value is not None}
            try:
                fields = {**self._headers.values(found, layout.types), **own}
                event_time = fields.pop("event_ts_ms", None)
                fields.setdefault("ts_ms", event_time)
                out.append(msgspec.convert(fields, layout.stated, strict=False))
            except (DecodeError, msgspec.ValidationError) as error:
                raise Fault(str(error), "position", suspects=[place]) from error
        return out

    def _demand_positions(self, layout: FlatLayout, roles: dict[str, str], texts: list[dict[str, bytes]]) -> None:
        if self._policy.versions.strategy != "source_position":
            return
        needed = set(layout.flattened.fields) - roles.keys()
        if layout.flattened.fields and all(needed <= found.keys() for found in texts):
            return
        raise missing_position(sorted(needed))

    def _connector(self, framed: Framed, found: Image, texts: dict[str, bytes], known: str) -> str:
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


def _mark_null_values(
    part: Part,
    layout: FlatLayout,
    deleted: str | None,
    images: list[Image],
    texts: list[dict[str, bytes]],
    places: Sequence[int],
) -> None:
    """Record which rows make a later null value a delete: those without a deleted mark, true or false.

    ``deleted``: the mark's field, None if no row has one.
    """
    if deleted is None:
        says = np.ones(len(texts), dtype=np.bool_)
    else:
        says = np.array([deleted not in image for image in images], dtype=np.bool_)
        if not says.any():
            return
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
