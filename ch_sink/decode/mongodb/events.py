"""Change events whose images are documents in Extended JSON: MongoDB's.

For tables with a column of the whole document as plain JSON, the compiled scanner reads them. It decides nothing by
itself: events that state only what changed, and groups of which anything fails, are decoded by the layout. A document
that compiled code does not write is read by Python, alone.
"""

from collections.abc import Callable
from ctypes import CDLL
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.json.columns import IS_ROW, NEEDS_AFTER, convert_column, meta
from ch_sink.decode.json.layout import Layout, RowReading, lists, source_block
from ch_sink.decode.json.scanned import Block, Refused, Scanner, block_fields, block_members
from ch_sink.decode.mongodb.columns import ID, DocumentColumn, DocumentTable, have_one_meaning
from ch_sink.decode.mongodb.texts import field_type
from ch_sink.decode.mongodb.updates import MISSING, Update, at, from_description, from_patch
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.decode.native.library import Keep, Members, library
from ch_sink.decode.native.scan import NULL, OBJECT, TEXTS, WRITABLE, Scan, Written, written
from ch_sink.decode.parts import Fault, Mask, Part, Read
from ch_sink.decode.unknown_columns import reserved
from ch_sink.errors import DecodeError
from ch_sink.model.change import Op, UnknownColumn, Updates
from ch_sink.model.policy import Policy
from ch_sink.sources import Source
from ch_sink.table.model import TargetTable
from ch_sink.types import clickhouse_type
from ch_sink.types.converter import shown
from ch_sink.types.text_columns import JsonColumn

Text = str | dict[str, Any] | None
"""Extended JSON as text, or as an object if a transformation has unpacked it."""
_MISSHAPEN = (TypeError, AttributeError)
_UNREADABLE = (DecodeError, ValueError, RecursionError, *_MISSHAPEN)


class UpdateDescription(msgspec.Struct, gc=False):
    """A change stream's description of an update."""

    updatedFields: Text = None  # noqa: N815 - the connector's names
    removedFields: list[Any] | str | None = None  # noqa: N815
    truncatedArrays: list[Any] | str | None = None  # noqa: N815


def is_document_source(source: Source) -> bool:
    """Whether row images are documents."""
    return source.name == "mongodb"


def document_layout(table: TargetTable, policy: Policy, source: Source, *, before: bool) -> Layout:
    """The layout of document events into a table. Raises TableError if a column cannot hold its field."""
    block = source_block("mongodb", source)
    envelope = msgspec.defstruct(
        "DocumentEnvelope",
        [
            ("op", str, ""),
            ("after", Text, None),
            ("before", Text, None),
            ("updateDescription", UpdateDescription | None, None),
            ("patch", Text, None),
            ("filter", Text, None),
            ("source", block | None, None),
        ],
        gc=False,
    )
    return Layout(
        connector="mongodb",
        source=source,
        decode=msgspec.json.Decoder(envelope).decode,
        row=RowReading(),
        before=before,
        images=DocumentEvents(DocumentTable(table, policy), before=before),
        block=block,
    )


class DocumentEvents:
    """Fills the columns of a part from document events."""

    def __init__(self, table: DocumentTable, *, before: bool) -> None:
        self.table, self.before = table, before

    def fill(self, rows: list[Any], part: Part) -> list[tuple[int, UnknownColumn]]:
        """Images, updates and unavailable values of ``part``, from its envelopes.

        Returns the unknown fields with the first event that has them. Raises Fault.
        """
        documents, updates = self._after(rows, part)
        written = np.isin(part.op, (Op.CREATE, Op.READ, Op.UPDATE))
        for column in self.table.columns:
            self._column(column, documents, updates, part)
        if any(row.before is not None for row in rows):
            part.has_before = np.array([row.before is not None for row in rows], dtype=np.bool_)
            if self.before:
                texts = [row.before for row in rows]
                befores = [None if text is None else self.read(text, i, part) for i, text in enumerate(texts)]
                for column in self.table.columns:
                    part.before[column.name] = self._convert(column, [_pick(column, b) for b in befores], part)
        return self._unknown(documents, updates, written, part)

    def _after(self, rows: list[Any], part: Part) -> tuple[list[Any], dict[int, Update]]:
        """Documents after each change (None: no row, or an update), and the updates without a document, by event."""
        documents: list[Any] = [None] * len(rows)
        updates: dict[int, Update] = {}
        update_op, gone = int(Op.UPDATE), (int(Op.DELETE), int(Op.TRUNCATE))
        for i, (row, op) in enumerate(zip(rows, part.op.tolist(), strict=True)):
            if op in gone:
                continue
            if row.after is not None:
                documents[i] = self.read(row.after, i, part)
            elif op == update_op and (row.updateDescription is not None or row.patch is not None):
                update = self._guard(self._update, row, i, part)
                if row.before is not None:
                    documents[i] = update.apply(self.read(row.before, i, part))
                elif update.whole:
                    documents[i] = update.apply(MISSING)
                else:
                    updates[i] = update
            else:
                raise Fault(f"operation {chr(op)!r} without an after image", suspects=[int(part.source_index[i])])
        return documents, updates

    def _update(self, row: Any) -> Update:
        if row.updateDescription is not None:
            return from_description(row.updateDescription)
        key = parse(row.filter).get("_id", MISSING) if row.filter is not None else MISSING
        return from_patch(row.patch, key)

    def read(self, text: Any, i: int, part: Part) -> Any:
        """The document of event ``i``. Raises Fault."""
        return self._guard(self._document, text, i, part)

    def _document(self, text: Any) -> Any:
        found = parse(text)
        if not isinstance(found, dict):
            raise DecodeError(f"expected a document, found {shown(found)}")
        return found

    def _guard(self, function: Callable[[Any], Any], value: Any, i: int, part: Part) -> Any:
        try:
            return function(value)
        except _UNREADABLE as error:
            reason = "the document is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if isinstance(error, _MISSHAPEN):
                reason = f"the document or its update is malformed: {reason}"
            raise Fault(reason, suspects=[int(part.source_index[i])]) from error

    def _column(self, column: DocumentColumn, documents: list[Any], updates: dict[int, Update], part: Part) -> None:
        values = [_pick(column, document) for document in documents]
        unknown = np.zeros(len(values), dtype=np.bool_)
        changes: dict[int, Callable[[Any], pa.Array]] = {}
        otherwise: dict[int, Callable[[Any], pa.Array]] = {}
        whole = self.table.document
        base = column if whole is None or (column.text and column.path == ()) else whole
        for i, update in updates.items():
            if column.name == self.table.key:
                continue  # an update never changes _id; the Kafka key has it
            touched = update.below(column.path)
            if touched is not None and touched.whole:
                found = touched.apply(MISSING)
                values[i] = None if found is MISSING else found
                continue
            unknown[i] = True
            if touched is None:
                continue
            if base is not column:
                changes[i] = self.table.derived(column)
                if column.text:
                    otherwise[i] = self.table.beside(column, touched)
            elif column.text:
                changes[i] = self.table.change(column, touched)
            else:
                raise Fault(
                    f"column {column.name!r}: the update changes a part of {'.'.join(column.path)!r}, but neither this "
                    "column nor the table holds the document's JSON (a column for the whole document does)",
                    "unresolved",
                    column.name,
                    suspects=[int(part.source_index[i])],
                )
        part.after[column.name] = self._convert(column, values, part)
        if unknown.any():
            part.unavailable[column.name] = unknown
        if changes:
            part.updates[column.name] = Updates(base.name, changes, otherwise)

    def _convert(self, column: DocumentColumn, values: list[Any], part: Part) -> pa.Array:
        try:
            converted = convert_column(column.name, column.converter, values)
        except Fault as fault:
            fault.suspects = part.source_index[list(fault.suspects)].tolist()
            raise
        if converted.clamped:
            part.clamped[column.name] += converted.clamped
        return converted.array

    def _unknown(
        self, documents: list[Any], updates: dict[int, Update], written: Mask, part: Part
    ) -> list[tuple[int, UnknownColumn]]:
        found: dict[str, tuple[int, list[Any]]] = {}
        for i, document in enumerate(documents):
            if document is None or not written[i]:
                continue
            for name in self._guard(self.table.unknown_fields, document, i, part):
                found.setdefault(name, (i, []))[1].append(document[name])
        for i, update in updates.items():
            steps = [step for step in update.steps if step.kind == "set" and step.path]
            fields = {step.path[0]: step.value if len(step.path) == 1 else {} for step in steps}
            for name in self._guard(self.table.unknown_fields, fields, i, part):
                first, values = found.get(name, (i, []))
                values.append(fields[name])
                found[name] = (min(first, i), values)
        own = self.table.reserved
        return [
            (i, reserved(name) if name in own else _unknown_column(name, values)) for name, (i, values) in found.items()
        ]


def _pick(column: DocumentColumn, document: Any) -> Any:
    return None if document is None or document is MISSING else column.pick(document)


def _unknown_column(name: str, values: list[Any]) -> UnknownColumn:
    declared = field_type(values)
    if declared is None:
        return UnknownColumn(name, -1, None)
    return UnknownColumn(name, -1, clickhouse_type(declared), comment=declared.to_comment(), inferred=True)


def take_key(part: Part) -> None:
    """Put the key into the rows of the part's updates, which do not state it."""
    update = part.op == Op.UPDATE
    if part.key is None or not update.any():
        return
    mask = pa.array(update)
    for name, array in part.key.items():
        part.after[name] = pc.if_else(mask, array, part.after[name])


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
        blocks = Block(found, self._fields, self._block)
        part = meta(self._layout.connector, self._layout.source, blocks, op, places)
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
        """Raises Refused or msgspec's errors for a value that the layout would refuse, or that is not text."""
        for name in ("after", "before", "patch", "filter"):
            slot = found.program.slots.get((name,))
            if slot is not None and not found.only(slot, TEXTS):
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
        """A column's texts that were written; None if it holds something else."""
        if column.path == ():
            return texts.whole(column.converter.arrow)
        number = self._names.index(column.path[0])
        kinds = int(texts.seen[number])
        if not column.plain or len(column.path) > 1 or kinds & ~WRITABLE:
            return None
        found = texts.field(number, column.converter.arrow)
        return found if column.path != ID or have_one_meaning(found, kinds) else None

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
    return None if whole is None else DocumentScanner(native, layout, events, whole, layout.block)
