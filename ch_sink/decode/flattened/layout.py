"""How flattened rows of one shape are decoded: their columns and their added fields."""

from collections.abc import Collection, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from ch_sink.decode.flattened.added import DELETED, Added, block_types, deleted_flag, flattened
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, Read, meta
from ch_sink.decode.json.layout import Field, Layout, RowReading, read_row, row_decoder
from ch_sink.decode.json.reader import RowFields
from ch_sink.decode.json.scanned import Block, Refused, Scanner, check, lists
from ch_sink.decode.native.library import Keep, Members, Skip, library
from ch_sink.decode.native.scan import Scan
from ch_sink.model.change import Op
from ch_sink.model.policy import Policy
from ch_sink.sources import Flattened
from ch_sink.table.model import TargetTable
from ch_sink.types.converter import nullable
from ch_sink.types.propagated_type import of_system

__all__ = ["FlatLayout", "FlatLayouts", "Rows", "row_scanner"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Added fields that are no columns, by role."""
    others: tuple[str, ...]
    """Added fields that are not looked at."""


class FlatLayouts:
    """Makes the layouts of flattened rows."""

    def __init__(self, table: TargetTable, policy: Policy, added: Added, *, before: bool) -> None:
        self._table, self._policy, self._added, self._before = table, policy, added, before
        self._columns = frozenset(c.name for c in table.source_columns)
        others = [c.name for c in table.columns if c.name not in self._columns]
        self._marks = [name for name in others if added.role(name) in ("op", "deleted")]
        """Added fields with the name of a column that is not filled from the row."""

    def build(self, framed: Framed, connector: str, fields: RowFields | None, numbers: bool) -> FlatLayout:
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
        row = read_row(self._table, self._policy.values, source, declared, expected, extras, numbers=numbers)
        row = self._with_deleted_flag(_reading(row, roles.values()))
        types = block_types(source)
        attributes = {row.renamed[attribute]: attribute for attribute, _ in (*row.members, *row.skipped)}
        at: dict[str, str] = {}
        more: list[tuple[str, Any, Any, str]] = []
        for role, name in roles.items():
            at[role] = attributes.get(name, role)
            if role == "deleted" and name not in attributes:
                more.append((role, str | bool | None | msgspec.UnsetType, msgspec.UNSET, name))
            elif name not in attributes:
                more.append((role, types.get(role, str | bool | None), None, name))
        stated = {role: Field(wire, default, (name,)) for role, wire, default, name in more}
        # A block has every field; those that were not added get names that cannot occur.
        more += [(role, wire, None, f"\x7f{role}") for role, wire in types.items() if at.get(role) != role]
        plain = {name for _, _, _, name in more}
        others = [n for n in names if self._added.is_added(n) and n not in attributes and n not in plain]
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
            reserved=tuple(found for found in row.reserved if not self._added.is_added(found[0])),
            roles=at,
            aliased=any(at[role] != role for role in at if role in types),
            types=types,
            stated=block,
            flattened=source,
            fields=stated,
            others=tuple(others),
            ignored=frozenset(row.renamed[attribute] for attribute, _ in row.skipped),
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
        skipped |= {name: Keep() if name in layout.reported else Skip() for name in layout.ignored}
        self._op = (layout.fields["op"].path[0],)
        self._deleted = layout.fields["deleted"].path if "deleted" in layout.fields else None
        self._block = {role: layout.fields.get(role, Field(wire, None, ())) for role, wire in layout.types.items()}
        columns = [c.name for c in layout.columns]
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
        part = meta(self._flat, Block(found, self._block, self._flat.stated), op, places)
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
    if native is None or layout.tolerant or layout.aliased or "op" not in layout.fields:
        return None
    if "event_ts_ms" in layout.roles or ("deleted" in layout.roles) != ("deleted" in layout.fields):
        return None
    return Rows(native, layout)
