"""Document events that the compiled scanner reads, for tables with a column of the whole document as plain JSON.

It decides nothing by itself: events that state only what changed, and groups of which anything fails, are decoded by
the layout. A document that compiled code does not write is read by Python, alone.
"""

from ctypes import CDLL
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.assemble import Mask, Part
from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, Read, meta
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.json.scanned import Block, Refused, Scanner, block_fields, block_members, lists
from ch_sink.decode.mongodb.columns import ID, DocumentColumn
from ch_sink.decode.mongodb.events import DocumentEvents, UpdateDescription
from ch_sink.decode.mongodb.updates import MISSING, at
from ch_sink.decode.mongodb.values import read
from ch_sink.decode.native.documents import KEYS, TEXTS, Written, written
from ch_sink.decode.native.library import library
from ch_sink.decode.native.program import Keep, Members
from ch_sink.decode.native.scan import NULL, OBJECT, Scan
from ch_sink.decode.native.scan import TEXTS as STRINGS
from ch_sink.types.json_column import JsonColumn

__all__ = ["DocumentScanner", "document_scanner"]


class DocumentScanner(Scanner):
    """Reads change events whose images are documents."""

    def __init__(
        self, native: CDLL, layout: Layout, events: DocumentEvents, whole: DocumentColumn, block: type[msgspec.Struct]
    ) -> None:
        self._events, self._block, self._fields = events, block, block_fields(block)
        # A JSON column refuses a path that is there twice, which takes a key with a dot.
        self._dotless = isinstance(whole.converter, JsonColumn)
        self._names = list(dict.fromkeys(column.path[0] for column in events.table.columns if column.path))
        kept = ("op", "after", "before", "updateDescription", "patch", "filter")
        root = Members(
            {**{name: Keep() for name in kept}, "source": block_members(self._fields, layout.connector)},
            frozenset(("op", "source")),
        )
        super().__init__(native, layout, root)

    def _read(self, found: Scan, payloads: list[bytes], places: Any) -> Read:
        slots = found.program.slots
        op = found.letters(slots["op",])
        if op is None or not IS_ROW[op].all() or not found.only(slots["source",], OBJECT):
            raise Refused
        self._check(found)
        needed, after = NEEDS_AFTER[op], slots.get(("after",))
        if needed.any() if after is None else (needed & found.are_null(after)).any():
            raise Refused
        part = meta(self._layout, Block(found, self._fields, self._block), op, places)
        if after is None:
            nothing = [None] * len(part)
            part.after = {c.name: c.converter.convert(nothing).array for c in self._events.table.columns}
        else:
            part.after = self._image(found, after, None if needed.all() else needed, part)
        before = slots.get(("before",))
        if before is not None and not found.only(before, NULL):
            part.has_before = ~found.are_null(before)
            if self._events.before:
                part.before = self._image(found, before, None, part)
        return Read(part, {}, [])

    def _check(self, found: Scan) -> None:
        """Raises Refused or msgspec's errors for a value that the layout would refuse, or that is no text."""
        for name in ("after", "before", "patch", "filter"):
            slot = found.program.slots.get((name,))
            if slot is not None and not found.only(slot, STRINGS):
                raise Refused
        described = found.program.slots.get(("updateDescription",))
        if described is not None and not found.only(described, NULL):
            found.literals(described, lists(UpdateDescription | None))

    def _image(self, found: Scan, slot: int, kept: Mask | None, part: Part) -> dict[str, pa.Array]:
        """The columns of an image; ``kept``: where it counts."""
        texts = written(found, slot, self._names, kept, dotless=self._dotless)
        refused = texts.refused
        others = {i: self._events.read(texts.given(i), i, part) for i in np.flatnonzero(refused).tolist()}
        out: dict[str, pa.Array] = {}
        for column in self._events.table.columns:
            array = self._written(texts, column)
            if array is None:
                array = self._converted(texts, column, others, part)
            elif others:
                parts = [column.pick(document) for document in others.values()]
                array = pc.replace_with_mask(array, pa.array(refused), column.converter.convert(parts).array)
            out[column.name] = array
        return out

    def _written(self, texts: Written, column: DocumentColumn) -> pa.Array | None:
        """A column's texts, as far as they were written; None if it holds something else."""
        if column.path == ():
            return texts.whole(column.converter.arrow)
        number = self._names.index(column.path[0])
        kinds = KEYS if column.path == ID else TEXTS
        if not column.plain or len(column.path) > 1 or int(texts.seen[number]) & ~kinds:
            return None
        return texts.field(number, column.converter.arrow)

    def _converted(self, texts: Written, column: DocumentColumn, others: dict[int, Any], part: Part) -> pa.Array:
        values: list[Any] = read(msgspec.json.decode(texts.literals(self._names.index(column.path[0]))))
        if len(column.path) > 1:
            found = (at(value, column.path[1:]) for value in values)
            values = [None if value is MISSING else value for value in found]
        for i, document in others.items():
            values[i] = column.pick(document)
        converted = column.converter.convert(values)
        if converted.clamped:
            part.clamped[column.name] += converted.clamped
        return converted.array


def document_scanner(layout: Layout) -> DocumentScanner | None:
    """The scanner of a layout's payloads; None if there is none."""
    native, events = library(), layout.images
    if native is None or layout.block is None or not isinstance(events, DocumentEvents):
        return None
    # Without a column for it, every document has to be searched for unknown fields.
    whole = events.table.document
    return None if whole is None or events.table.typed else DocumentScanner(native, layout, events, whole, layout.block)
