"""Decoding of flattened rows of one shape: their columns, their added fields, and the compiled scanner of both."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, get_args

import msgspec
import numpy as np

from ch_sink.decode.event_form import DELETED
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, meta
from ch_sink.decode.json.layout import Field, Image, Layout, lists, read_row
from ch_sink.decode.json.scanned import Block, Refused, Scanner, check, image_members
from ch_sink.decode.native.library import Keep, library
from ch_sink.decode.native.scan import Scan
from ch_sink.decode.parts import Read
from ch_sink.errors import DecodeError
from ch_sink.model.change import Headers, Op
from ch_sink.model.policy import Policy
from ch_sink.sources import FLATTENED, SOURCES, Flattened, source_for
from ch_sink.sources.base import TABLE
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter
from ch_sink.types.arrow import INTEGERS, arrow_of
from ch_sink.types.chtype import parse_type
from ch_sink.types.connect import of_system
from ch_sink.types.converter import PerValue
from ch_sink.types.scalars import flag, flag_text


def flattened(connector: str) -> Flattened:
    """The source for a connector name from :func:`flat_connector`."""
    source = source_for(connector)
    assert isinstance(source, Flattened)
    return source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatLayout(Layout):
    """A layout of rows, whose added fields are found in each group."""

    types: dict[str, Any]
    """The roles that make up the ``source`` block, with their types."""
    stated: type[msgspec.Struct]
    """Replacement for the ``source`` block."""
    flattened: Flattened

    def type_of(self, role: str, name: str) -> Any:
        """The type of an added field: any where it is a column of the table, which knows better."""
        own = any(column.name == name for column in self.row.columns)
        return Any if own else self.types.get(role, _DELETED)


class Added:
    """Reads names of added fields: ``__op``, ``__source_ts_ms``, ``__lsn``, … with the configured prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def is_added(self, name: str) -> bool:
        """Whether a field was added to the row (a column of the table may nevertheless hold it)."""
        return name == DELETED or name.startswith(self._prefix)

    def role(self, name: str) -> str | None:
        """The role of the field: ``op``, ``deleted``, ``event_ts_ms`` or a field of the ``source`` block; else None."""
        if name == DELETED:
            return "deleted"
        if not name.startswith(self._prefix):
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


def flat_layout(
    table: TargetTable, policy: Policy, added: Added, framed: Framed, connector: str, *, before: bool
) -> FlatLayout:
    """The layout of rows of this connector. Raises TableError if a column cannot hold its source type, DecodeError."""
    source = flattened(connector)
    every = {f.name: f.type for f in framed.schema.fields} if framed.schema is not None else None
    columns = frozenset(c.name for c in table.source_columns)
    declared = None
    if every is not None:
        own = {n: t for n, t in every.items() if n in columns or not added.is_added(n)}
        declared = of_system(own, connector)
    row = read_row(table, policy.values, source, declared)
    mark = table.column(DELETED)
    flag = deleted_flag(mark.type) if mark is not None else None
    if flag is not None:
        row = replace(row, columns=tuple(replace(c, converter=flag) if c.name == DELETED else c for c in row.columns))
    types = block_types(source)
    return FlatLayout(
        connector=connector,
        source=source,
        decode=msgspec.json.Decoder(Image).decode,
        row=row if every is None else replace(row, declared=frozenset(every)),
        before=before,
        added=added.is_added,
        types=types,
        stated=msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False),
        flattened=source,
    )


_TRUE = ("true", True)
_DELETED = str | bool | None


class Rows(Scanner):
    """Reads flattened rows that state their operation, and of whose added fields none is a column of the table."""

    def __init__(self, native: CDLL, layout: FlatLayout, names: dict[str, str]) -> None:
        self._flat = layout
        self._op = (names["op"],)
        self._deleted = (names["deleted"],) if "deleted" in names else ()
        self._fields = [Field(layout.type_of(role, name), None, (name,)) for role, name in names.items()]
        paths = {role: (names[role],) if role in names else () for role in layout.types}
        self._block = {role: Field(wire, None, paths[role]) for role, wire in layout.types.items()}
        root = image_members(layout, dict.fromkeys(names.values(), Keep()))
        super().__init__(native, layout, replace(root, required=root.required.union(self._op, self._deleted)))

    def _read(self, found: Scan, payloads: list[bytes], places: Sequence[int]) -> Read:
        slots = found.program.slots
        op = found.letters(slots[self._op])
        if op is None:
            raise Refused
        if self._deleted:
            marks = found.distinct(slots[self._deleted], lists(_DELETED))
            if marks is None:
                raise Refused
            deleted = np.array([mark in _TRUE for mark in marks[0]], dtype=np.bool_)[marks[1]]
            op = np.where(deleted, np.uint8(Op.DELETE), op)
        if not IS_ROW[op].all():
            raise Refused
        check(found, self._fields)
        part = meta(self._flat.connector, self._flat.source, Block(found, self._block, self._flat.stated), op, places)
        needed = NEEDS_AFTER[op]
        is_row = self._after(found, part, (), None if needed.all() else needed)
        gone = op == Op.DELETE
        if gone.any():  # what is left of such a row is its before image
            part.has_before = gone
            self._befores(found, part, (), gone)
        return Read(part, {}, self._unknown(found, part, (), is_row, payloads))


def row_scanner(layout: FlatLayout, roles: tuple[tuple[str, str], ...]) -> Rows | None:
    """The scanner of a layout's rows with these added fields; None if there is none."""
    native, names = library(), dict(roles)
    if native is None or "op" not in names or "event_ts_ms" in names:
        return None
    columns = {column.name for column in layout.row.columns}
    return None if columns & set(names.values()) else Rows(native, layout, names)


_BLOCK: dict[str, Any] = {
    "connector": str | None,
    "name": str | None,
    "ts_ms": int | None,
    "snapshot": str | bool | None,
    **dict.fromkeys(TABLE, str | None),
}
_POSITION = {f.name for source in SOURCES for f in msgspec.structs.fields(source.wire)}


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
        self._added = Added(prefix)
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
        return {role: header_value(role, raw, types[role]) for role, raw in texts.items() if role in types}


def header_value(role: str, raw: bytes, wire: Any) -> Any:
    """A header as `HeaderFields.values` reads it. Raises DecodeError."""
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
