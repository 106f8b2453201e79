"""How flattened rows of one shape are decoded, by Structs or by the compiled scanner: columns and added fields."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from decimal import Decimal
from types import UnionType
from typing import Any, get_args

import msgspec
import numpy as np

from ch_sink.decode.event_form import DELETED
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, meta
from ch_sink.decode.json.layout import Field, Layout, RowReading, read_row, row_decoder
from ch_sink.decode.json.reader import RowFields
from ch_sink.decode.json.scanned import Block, Refused, Scanner, check, lists
from ch_sink.decode.native.library import Keep, Members, Skip, library
from ch_sink.decode.native.scan import Scan
from ch_sink.decode.parts import Read
from ch_sink.errors import DecodeError
from ch_sink.model.change import Headers, Op
from ch_sink.model.policy import Policy
from ch_sink.sources import FLATTENED, SOURCES, Flattened, source_for
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter
from ch_sink.types.arrow import INTEGERS, arrow_of
from ch_sink.types.chtype import parse_type
from ch_sink.types.connect import of_system
from ch_sink.types.converter import PerValue, nullable
from ch_sink.types.scalars import flag, flag_text


def flattened(connector: str) -> Flattened:
    """The source for a connector name from :func:`flat_connector`."""
    source = source_for(connector)
    assert isinstance(source, Flattened)
    return source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatLayout(Layout):
    """A layout of rows, with their added fields."""

    roles: dict[str, str]
    """Role → attribute of the row."""
    aliased: bool
    """Whether columns of the table hold some of these fields."""
    types: dict[str, Any]
    stated: type[msgspec.Struct]
    """Replacement for the ``source`` block."""
    flattened: Flattened
    fields: Mapping[str, Field]
    """Added fields that are not columns, by role."""
    others: tuple[str, ...]
    """Added fields that are not looked at."""


class Added:
    """Reads names of added fields: ``__op``, ``__source_ts_ms``, ``__lsn``, … with the configured prefix."""

    def __init__(self, prefix: str, columns: Collection[str]) -> None:
        """``columns``: the table's source columns. Without a prefix, a field of such a name is only a column."""
        self._prefix = prefix
        self._columns = frozenset(columns)

    def is_added(self, name: str) -> bool:
        """Whether a field was added to the row (a column of the table may nevertheless hold it)."""
        if name == DELETED:
            return True
        if self._prefix:
            return name.startswith(self._prefix)
        return name not in self._columns and (self.role(name) is not None or name.removeprefix("source_") in _OTHERS)

    def role(self, name: str) -> str | None:
        """What the field states: ``op``, ``deleted``, ``event_ts_ms`` or a field of the ``source`` block; else None."""
        if name == DELETED:
            return "deleted"
        if not name.startswith(self._prefix) or (not self._prefix and name in self._columns):
            return None
        rest = name[len(self._prefix) :]
        if rest == "op":
            return "op"
        if rest == "ts_ms":
            return "event_ts_ms"
        field = rest.removeprefix("source_")
        return field if field in _BLOCK or field in _POSITION else None

    def roles(self, names: Iterable[str]) -> dict[str, str]:
        """Role → name of the field that states it; the first of several."""
        out: dict[str, str] = {}
        for name in names:
            role = self.role(name)
            if role is not None:
                out.setdefault(role, name)
        return out


AddedMember = tuple[str, Any, Any, str]
"""Attribute, type, default and field name of a member of a row's Struct that is not a column."""


def _member(role: str, name: str, types: Mapping[str, Any]) -> AddedMember:
    """The member for an added field that no column holds."""
    if role == "deleted":
        return role, str | bool | None | msgspec.UnsetType, msgspec.UNSET, name
    return role, types.get(role, str | bool | None), None, name


class FlatLayouts:
    """Makes the layouts of flattened rows."""

    def __init__(self, table: TargetTable, policy: Policy, added: Added, *, before: bool) -> None:
        self._table, self._policy, self._added, self._before = table, policy, added, before
        self._columns = frozenset(c.name for c in table.source_columns)
        others = [c.name for c in table.columns if c.name not in self._columns]
        self._marks = [name for name in others if added.role(name) in ("op", "deleted")]
        """Added fields with the name of a column that is not filled from the row."""

    def build(self, framed: Framed, connector: str, fields: RowFields | None) -> FlatLayout:
        """The layout of rows of this connector (see `RowDecoder`). The payload is ``{"after": row}``."""
        source = flattened(connector)
        expected: frozenset[str] | None = None
        extras: list[str] = []
        declared = {f.name: f.type for f in framed.schema.fields} if framed.schema is not None else None
        if declared is not None:
            names = list(declared)
            own = {n: t for n, t in declared.items() if n in self._columns or not self._added.is_added(n)}
            declared = of_system(own, connector)
        else:
            assert fields is not None
            names = [*fields.extras, *sorted(fields.expected), *self._marks]
            expected = fields.expected if fields.strict else None
            extras = [n for n in fields.extras if not self._added.is_added(n)]
        roles = self._added.roles(names)
        row = read_row(self._table, self._policy.values, source, declared, expected, extras)
        row = self._with_deleted_flag(_reading(row, roles.values()))
        types = block_types(source)
        attributes = {row.renamed[attribute]: attribute for attribute, _ in (*row.members, *row.skipped)}
        at = {role: attributes.get(name, role) for role, name in roles.items()}
        more = [_member(role, name, types) for role, name in roles.items() if name not in attributes]
        stated = {role: Field(wire, default, (name,)) for role, wire, default, name in more}
        # A block has every field; those that were not added get names that cannot occur.
        more += [(role, wire, None, f"\x7f{role}") for role, wire in types.items() if at.get(role) != role]
        plain = {name for _, _, _, name in more}
        others = [n for n in names if self._added.is_added(n) and n not in attributes and n not in plain]
        more += [(f"o{i}", msgspec.Raw, msgspec.UNSET, name) for i, name in enumerate(others)]
        after = row.struct("FlatRow", row.present, required=not row.tolerant, forbid=True, more=more)
        wrapped = msgspec.defstruct("Wrapped", [("after", after)], gc=False)
        reserved = tuple(found for found in row.reserved if not self._added.is_added(found[0]))
        row = replace(row, readers=row.columns, reserved=reserved)
        null = after(**dict.fromkeys(m[0] for m in row.present))
        block = msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False)
        return FlatLayout(
            connector=connector,
            source=source,
            decode=row_decoder(msgspec.json.Decoder(wrapped, float_hook=Decimal).decode, (after,)),
            row=row,
            null_row=null,
            null_before=null,
            before=self._before,
            roles=at,
            aliased=any(at[role] != role for role in at if role in types),
            types=types,
            stated=block,
            flattened=source,
            fields=stated,
            others=tuple(others),
        )

    def _with_deleted_flag(self, row: RowReading) -> RowReading:
        """The reading with ``__deleted``, a text or a boolean, as 1 or 0 if its column is not text."""
        column = self._table.column(DELETED)
        made = deleted_flag(column.type) if column is not None else None
        if made is None:
            return row
        attribute = next((attribute for attribute, field in row.renamed.items() if field == DELETED), None)
        return replace(
            row,
            readers=tuple(replace(r, converter=made) if r.name == DELETED else r for r in row.readers),
            columns=tuple(replace(r, converter=made) if r.name == DELETED else r for r in row.columns),
            members=tuple((a, nullable(made.wire)) if a == attribute else (a, wire) for a, wire in row.members),
            present=tuple((a, nullable(made.wire)) if a == attribute else (a, wire) for a, wire in row.present),
        )


def _reading(row: RowReading, names: Collection[str]) -> RowReading:
    """The reading without the fields of these names among those that are skipped.

    A table may have its own column ``__deleted``: the engine's column for deletes, or an ALIAS.
    """
    return replace(row, skipped=tuple(member for member in row.skipped if row.renamed[member[0]] not in names))


_TRUE = ("true", True)
_DELETED = str | bool | None


class Rows(Scanner):
    """Reads flattened rows that state their operation, and of whose added fields none is a column of the table."""

    def __init__(self, native: CDLL, layout: FlatLayout) -> None:
        self._flat = layout
        skipped: dict[str, Any] = dict.fromkeys(layout.others, Skip())
        skipped |= layout.row.without_column()
        self._op = (layout.fields["op"].path[0],)
        self._deleted = layout.fields["deleted"].path if "deleted" in layout.fields else None
        self._block = {role: layout.fields.get(role, Field(wire, None, ())) for role, wire in layout.types.items()}
        columns = [c.name for c in layout.row.columns]
        added = [field.path[0] for field in layout.fields.values()]
        needed = {*columns, *self._op, *(self._deleted or ())}
        root = Members(skipped | dict.fromkeys((*columns, *added), Keep()), frozenset(needed), closed=True)
        super().__init__(native, layout, root)

    def _read(self, found: Scan, payloads: list[bytes], places: Sequence[int]) -> Read:
        slots = found.program.slots
        op = found.letters(slots[self._op])
        if op is None:
            raise Refused
        if self._deleted is not None:
            marks = found.distinct(slots[self._deleted], lists(_DELETED))
            if marks is None:
                raise Refused
            deleted = np.array([mark in _TRUE for mark in marks[0]], dtype=np.bool_)[marks[1]]
            op = np.where(deleted, np.uint8(Op.DELETE), op)
        if not IS_ROW[op].all():
            raise Refused
        check(found, self._flat.fields.values())
        part = meta(self._flat.connector, self._flat.source, Block(found, self._block, self._flat.stated), op, places)
        needed = NEEDS_AFTER[op]
        is_row = self._after(found, part, (), None if needed.all() else needed)
        gone = op == Op.DELETE
        if gone.any():  # what is left of such a row is its before image
            part.has_before = gone
            self._befores(found, part, (), gone)
        return Read(part, {}, self._unknown(found, part, (), is_row, payloads))


def row_scanner(layout: FlatLayout) -> Rows | None:
    """The scanner of a layout's rows; None if there is none."""
    native = library()
    if native is None or layout.row.tolerant or layout.aliased or "op" not in layout.fields:
        return None
    if "event_ts_ms" in layout.roles or ("deleted" in layout.roles) != ("deleted" in layout.fields):
        return None
    return Rows(native, layout)


_BLOCK: dict[str, Any] = {
    "connector": str | None,
    "name": str | None,
    "ts_ms": int | None,
    "snapshot": str | bool | None,
}
_POSITION = {f.name for source in SOURCES for f in msgspec.structs.fields(source.wire)}
_OTHERS = frozenset(
    """
    id total_order data_collection_order ts_us ts_ns version db schema table query txId xmin thread server_id gtid
    """.split()
)
"""Other added names, which the sink does not use."""


def flat_connector(roles: Collection[str], stated: str = "") -> str:
    """Connector name of events with these added fields: ``flattened:<connector>``, or ``flattened``.

    ``stated``: the connector that a field names; else it is the one most of whose position fields are present.
    """
    if stated:
        return f"{FLATTENED}:{stated}"
    shared = {source: len(set(source.wire.__struct_fields__) & set(roles)) for source in SOURCES}
    best = max(SOURCES, key=lambda source: shared[source])
    return f"{FLATTENED}:{min(best.connectors)}" if shared[best] else FLATTENED


def deleted_flag(column_type: str) -> Converter | None:
    """The converter of ``__deleted`` into an integer or Bool column; None for a column of any other type."""
    target = parse_type(column_type).bare
    if target.name not in INTEGERS and target.name != "Bool":
        return None
    as_flag = bool if target.name == "Bool" else int

    def one(value: Any) -> Any:
        return as_flag(flag_text(value) if isinstance(value, str) else flag(value))

    return PerValue(bool | int | str, arrow_of(target), one, reaction="fail")


def block_types(source: Flattened) -> dict[str, Any]:
    """Types of the roles that make up the ``source`` block of this source."""
    return {**_BLOCK, "event_ts_ms": int | None, **{f.name: f.type for f in msgspec.structs.fields(source.wire)}}


class HeaderFields:
    """Reads the headers that replace fields of an envelope."""

    def __init__(self, prefix: str) -> None:
        # A header without prefix may have another origin; headers never hold columns.
        self._added = Added(prefix, ())
        self._roles: dict[str, str | None] = {}

    def texts(self, headers: Headers | None) -> dict[str, bytes]:
        """Role → bytes of the headers that have one; empty for most records."""
        out: dict[str, bytes] = {}
        for name, raw in headers or ():
            if name not in self._roles:
                self._roles[name] = self._added.role(name)
            role = self._roles[name]
            if role is not None:
                out.setdefault(role, b"null" if raw is None else raw)
        return out

    def values(self, texts: Mapping[str, bytes], types: Mapping[str, Any]) -> dict[str, Any]:
        """The header texts as values of these types; roles without a type are left out. Raises DecodeError.

        Headers are plain texts (Connect's ``SimpleHeaderConverter``) or JSON, with or without schema.
        """
        return {role: _value(role, raw, types[role]) for role, raw in texts.items() if role in types}


def _value(role: str, raw: bytes, wire: Any) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the header for {role!r} is not UTF-8: {error}") from error
    try:
        found: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        found = text
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    if found is None:
        return None
    kinds = get_args(wire) if isinstance(wire, UnionType) else (wire,)
    if str in kinds and not isinstance(found, str):
        return text
    try:
        return msgspec.convert(found, wire, strict=False)
    except msgspec.ValidationError as error:
        raise DecodeError(f"the header for {role!r}: {error}") from error
