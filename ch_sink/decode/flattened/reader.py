"""Flattened rows: JSON that ``ExtractNewRecordState`` took out of its envelope, read by the reader of row images."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from ch_sink.decode.event_form import Form, Forms, OtherForm
from ch_sink.decode.flattened.added_fields import Added, block_types, flat_connector, flattened
from ch_sink.decode.flattened.added_headers import HeaderFields
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.aliases import row_decoder
from ch_sink.decode.json.columns import SNAPSHOT, UNREADABLE, Fault, Read, to_columns
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.json.reader import JsonReader
from ch_sink.decode.json.rows import read_row
from ch_sink.errors import DecodeError, StreamFailed
from ch_sink.model.change import Headers
from ch_sink.model.policy import Policy
from ch_sink.sources import FLATTENED, Flattened
from ch_sink.table.model import TargetTable

__all__ = ["FlatReader", "missing_position"]

_OLD_KEY = "__debezium.oldkey"
_INITIAL = SNAPSHOT - {"incremental"}
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Event(msgspec.Struct, gc=False):
    """A row change, as the reader of envelopes gives it."""

    op: str
    after: Any
    before: Any
    source: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLayout(Layout):
    """A layout of rows, with what they tell beside their columns."""

    roles: dict[str, str]
    """Role → attribute of the row."""
    aliased: bool
    """Columns of the table hold some of it."""
    types: dict[str, Any]
    block: type[msgspec.Struct]
    flattened: Flattened


class FlatReader(JsonReader):
    """Decodes groups of flattened rows, each put into an envelope of its own: their errors and layouts are the same."""

    def __init__(self, table: TargetTable, policy: Policy, forms: Forms, *, before: bool) -> None:
        super().__init__(table, policy, forms, before=before)
        self._columns = frozenset(c.name for c in table.source_columns)
        self._added = Added(policy.events.fields_prefix, self._columns)
        self._headers = HeaderFields(policy.events.headers_prefix)
        self.connector = ""
        """That of the last group."""
        self.layout: FlatLayout | None = None
        """That of the last group, None where it could not be read."""

    def read_rows(
        self, framed: Framed, payloads: list[bytes], places: Sequence[int], headers: Sequence[Headers | None]
    ) -> Read:
        """Decode a group. ``headers`` are the payloads'. Raises Fault, OtherForm, and StreamFailed (see below).

        An event without added fields is an upsert. StreamFailed: ``version.strategy: source_position`` is set and
        the events do not tell their positions.
        """
        self.layout = None
        try:
            return self._read_rows(framed, payloads, places, headers)
        except Fault as fault:
            fault.unknown = self._unknown(framed, self.layout)
            raise

    def _read_rows(
        self, framed: Framed, payloads: list[bytes], places: Sequence[int], headers: Sequence[Headers | None]
    ) -> Read:
        texts = [self._headers.texts(found) for found in headers]
        self._find_source(framed, payloads[0], texts[0])
        wrapped = [b'{"after":' + payload + b"}" for payload in payloads]
        try:
            layout, rows = self._decode(framed, wrapped)
        except Fault as fault:
            fault.suspects = [places[i] for i in fault.suspects]
            raise
        assert isinstance(layout, FlatLayout)
        self.layout = layout
        images = [row.after for row in rows]
        blocks = self._blocks(layout, images, texts, places)
        self._demand_positions(layout, texts)
        events = []
        for image, block, text, found, place in zip(images, blocks, texts, headers, places, strict=True):
            try:
                events.append(self._event(layout, image, block, text, found))
            except DecodeError as error:
                raise Fault(error.message, suspects=[place] if len(images) > 1 else ()) from error
        read = to_columns(layout, events, payloads, places)
        part = read.part
        part.tombstones_delete = "deleted" not in layout.roles
        if part.tombstones_delete and not all(set(layout.flattened.fields) <= found.keys() for found in texts):
            # The null values that are deletes tell no position: it cannot join the two halves of a key change.
            part.commit, part.inner = np.zeros_like(part.commit), np.zeros_like(part.inner)
            part.has_commit = np.zeros_like(part.has_commit)
        return read

    def _event(
        self, flat: FlatLayout, image: Any, block: Any, texts: dict[str, bytes], headers: Headers | None
    ) -> _Event:
        given = getattr(image, flat.roles["op"]) if "op" in flat.roles else None
        if not isinstance(given, str):
            given = self._headers.values(texts, {"op": str}).get("op")
        marked = getattr(image, flat.roles["deleted"]) if "deleted" in flat.roles else None
        if marked in ("true", True, b"true") or given == "d":
            return _Event("d", None, image, block)
        if given is None:
            created = any(name == _OLD_KEY for name, _ in headers or ())
            given = "c" if created else "r" if block.snapshot in _INITIAL else "u"
        return _Event(given, image, None, block)

    def _blocks(
        self, flat: FlatLayout, images: list[Any], texts: list[dict[str, bytes]], places: Sequence[int]
    ) -> list[Any]:
        """What stands for each event's ``source`` block: the row itself, unless headers or columns tell of it."""
        if not flat.aliased and not any(texts) and "event_ts_ms" not in flat.roles:
            return images
        out = []
        for image, found, place in zip(images, texts, places, strict=True):
            told = {role: getattr(image, at) for role, at in flat.roles.items() if role in flat.types}
            try:
                told = {**self._headers.values(found, flat.types), **{r: v for r, v in told.items() if v is not None}}
                out.append(self.block(flat.block, told))
            except (DecodeError, msgspec.ValidationError) as error:
                raise Fault(str(error), "position", suspects=[place] if len(images) > 1 else ()) from error
        return out

    @staticmethod
    def block(kind: type[msgspec.Struct], told: dict[str, Any]) -> Any:
        """A ``source`` block; without a source time, the connector's stands for it."""
        event_time = told.pop("event_ts_ms", None)
        told.setdefault("ts_ms", event_time)
        return msgspec.convert(told, kind, strict=False)

    def _demand_positions(self, flat: FlatLayout, texts: list[dict[str, bytes]]) -> None:
        if self._policy.versions.strategy != "source_position":
            return
        needed = set(flat.flattened.fields) - flat.roles.keys()
        if flat.flattened.fields and all(needed <= found.keys() for found in texts):
            return
        raise missing_position(sorted(needed))

    def _find_source(self, framed: Framed, payload: bytes, texts: dict[str, bytes]) -> None:
        """Which source system the rows are of: by an added field, else by the position fields that were added."""
        names = [f.name for f in framed.schema.fields] if framed.schema is not None else ()
        found: dict[str, msgspec.Raw] = {}
        with contextlib.suppress(*UNREADABLE):
            found = _names.decode(payload)
        roles = self._added.roles([*names, *found])
        told = ""
        with contextlib.suppress(DecodeError):  # the record is refused when it is read as a whole
            told = self._headers.values(texts, {"connector": str}).get("connector") or ""
        if "connector" in roles and roles["connector"] in found:
            raw: Any = msgspec.json.decode(found[roles["connector"]])
            told = raw if isinstance(raw, str) else told
        connector = flat_connector({*roles, *texts}, told)
        if connector != FLATTENED or not self.connector:
            self.connector = connector
        self._connector = self.connector

    def _connector_in(self, payload: bytes) -> str:
        return ""

    def _tolerant(self, framed: Framed, payloads: list[bytes], fault: Exception) -> tuple[Layout, list[Any]]:
        if any(self._forms.of_payload(p[9:-1]) is not Form.FLATTENED for p in payloads):
            raise OtherForm
        return super()._tolerant(framed, payloads, fault)

    def _extra(self, names: Sequence[str]) -> None:
        super()._extra(names)
        if any(self._added.is_added(name) for name in names):
            self._drop_schemaless(tolerant=False)

    def _build(self, framed: Framed, connector: str, expected: frozenset[str] | None) -> Layout:
        source = flattened(connector)
        declared = {f.name: f.type for f in framed.schema.fields} if framed.schema is not None else None
        told = list(declared) if declared is not None else [*self._extras, *sorted(self._columns)]
        roles = self._added.roles(told)
        if declared is not None:
            declared = {n: t for n, t in declared.items() if n in self._columns or not self._added.is_added(n)}
            expected = None
        unknown = [n for n in self._extras if not self._added.is_added(n)] if expected is None else []
        extras = [] if declared is not None else unknown
        row = read_row(self._table, self._policy.values, source, declared, expected, extras, numbers=self._numbers)
        types = block_types(source)
        attributes = {field: attribute for attribute, field in row.renamed.items()}
        at: dict[str, str] = {}
        more: list[tuple[str, Any, Any, str]] = []
        for role, name in roles.items():
            if name in attributes:
                at[role] = attributes[name]
            else:
                at[role] = role
                more.append((role, types.get(role, str | bool | None), None, name))
        # A block has every field, also those that were not added: their names cannot occur.
        more += [(role, wire, None, f"\x7f{role}") for role, wire in types.items() if at.get(role) != role]
        plain = {name for _, _, _, name in more}
        others = [n for n in told if self._added.is_added(n) and n not in attributes and n not in plain]
        more += [(f"o{i}", msgspec.Raw, msgspec.UNSET, name) for i, name in enumerate(others)]
        after = row.struct("FlatRow", row.present, required=not row.tolerant, forbid=True, more=more)
        wrapped = msgspec.defstruct("Wrapped", [("after", after)], gc=False)
        null = after(**dict.fromkeys(m[0] for m in row.present))
        block = msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False)
        return FlatLayout(
            connector=connector,
            source=source,
            decode=row_decoder(msgspec.json.Decoder(wrapped, float_hook=Decimal).decode, (after,)),
            columns=row.columns,
            before_columns=row.columns,
            null_row=null,
            null_before=null,
            before=self._before,
            tolerant=row.tolerant,
            missing=row.missing,
            unknown=row.unknown,
            extras=row.extras,
            roles=at,
            aliased=any(at[role] != role for role in at if role in types),
            types=types,
            block=block,
            flattened=source,
        )


def missing_position(needed: Sequence[str]) -> StreamFailed:
    """The error where positions are to order the changes and the events do not tell them."""
    named = ", ".join(needed) if needed else "of any source that is known"
    return StreamFailed(
        f"version.strategy is source_position, and flattened events lack the fields of a position: {named}",
        hint="add them by add.fields (and add.headers, where deletes are null values) in ExtractNewRecordState, "
        "or leave version.strategy out: the Kafka offset orders flattened events",
    )
