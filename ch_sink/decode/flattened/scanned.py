"""Flattened rows that the compiled scanner reads."""

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np

from ch_sink.decode.flattened.layout import FlatLayout
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, Read, meta
from ch_sink.decode.json.layout import Field
from ch_sink.decode.json.scanned import Block, Refused, Scanner, check, lists
from ch_sink.decode.native.library import library
from ch_sink.decode.native.program import Keep, Members, Skip
from ch_sink.decode.native.scan import Scan
from ch_sink.model.change import Op

__all__ = ["Rows", "row_scanner"]

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
