"""Decoded JSON envelopes of one shape to columns."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.decode.event_form import classify, row_operations
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.parts import Fault, Mask, Part, Read, as_places, skipped
from ch_sink.decode.unknown_columns import field_before, observed, reserved
from ch_sink.errors import DecodeError, PositionError
from ch_sink.model.change import Op, SkippedPlaces, UnknownColumn
from ch_sink.sources import Source
from ch_sink.sources.base import Blocks, numbers, stream_names, values
from ch_sink.types import Converted, Converter, OutOfRange

UNCONVERTED = (ValueError, TypeError, ArithmeticError, pa.ArrowException)
EXPECT_AFTER = frozenset((Op.CREATE, Op.READ, Op.UPDATE))
NEEDS_AFTER = np.zeros(256, dtype=np.bool_)
NEEDS_AFTER[list(EXPECT_AFTER)] = True
IS_ROW = np.zeros(256, dtype=np.bool_)
IS_ROW[list(Op)] = True


def to_columns(
    layout: Layout, rows: list[Any], payloads: list[bytes], places: Sequence[int], ops: list[str] | None = None
) -> Read:
    """Envelopes (decoded by the layout) to a part without keys. ``ops``: their operations. Raises Fault."""
    if ops is None:
        ops = [row.op for row in rows]
    codes = "".join(ops)
    gone: SkippedPlaces = {}
    if len(codes) != len(ops) or "" in ops or not row_operations.issuperset(set(codes)):
        keep: list[int] = []
        others: list[int] = []
        for i, found in enumerate(ops):
            (keep if found in row_operations else others).append(i)
        gone = skipped(lambda i: classify(ops[i], payloads[i]), others, [places[i] for i in others])
        rows, payloads, places = [rows[i] for i in keep], [payloads[i] for i in keep], [places[i] for i in keep]
        codes = "".join([row.op for row in rows])
    op = np.frombuffer(codes.encode(), dtype=np.uint8)
    if layout.images is not None:
        part = meta(layout.connector, layout.source, _blocks(rows, places), op, places)
        return Read(part, gone, layout.images.fill(rows, part))
    images = [row.after for row in rows]
    is_row = _check_images(op, images, places)
    part = meta(layout.connector, layout.source, _blocks(rows, places), op, places)
    if is_row is not None:
        null_row = layout.null_row
        for i in np.flatnonzero(~is_row).tolist():
            images[i] = null_row
    try:
        _images(layout, rows, images, is_row, part)
    except Fault as fault:
        fault.suspects = part.source_index[list(fault.suspects)].tolist()
        raise
    gets = dict((*layout.row.extras, *layout.row.reserved))
    unknown = unknown_columns(layout, is_row, part, lambda name: list(map(gets[name], images)), payloads)
    return Read(part, gone, unknown)


def _images(layout: Layout, rows: list[Any], images: list[Any], is_row: "Mask | None", part: Part) -> None:
    _after(layout, images, is_row, part)
    befores = [row.before for row in rows]
    if any(befores):
        part.has_before = np.fromiter([before is not None for before in befores], np.bool_, len(befores))
        if layout.before:
            null_before = layout.null_before
            filled = [null_before if before is None else before for before in befores]
            part.before = {
                c.name: convert_column(c.name, c.converter, _known(c.values(filled))).array for c in layout.row.readers
            }
            present = {
                c.name for c in layout.row.readers
            }  # a schemaless before image may have fields that after images lack
            part.absent_before = {n: part.has_before.copy() for n in layout.row.missing if n not in present}


def _known(values: list[Any]) -> list[Any]:
    """The values, null where the field was absent."""
    unset = msgspec.UNSET
    return [None if value is unset else value for value in values] if unset in values else values


def _check_images(op: Any, images: list[Any], places: Sequence[int]) -> "Mask | None":
    """The events whose after image counts; None for all. Raises Fault if an event lacks one that it needs."""
    if all(images) and not ((op == Op.DELETE) | (op == Op.TRUNCATE)).any():
        return None
    needed: Mask = NEEDS_AFTER[op]
    lacking = np.flatnonzero(needed & np.fromiter([image is None for image in images], np.bool_, len(images)))
    if len(lacking):
        letter = chr(int(op[lacking[0]]))
        raise Fault(f"operation {letter!r} without an after image", suspects=[places[i] for i in lacking.tolist()])
    return needed


def _blocks(rows: list[Any], places: Sequence[int]) -> list[Any]:
    blocks = [row.source for row in rows]
    if not all(blocks):
        # Without it the source system is unknown, and so are the position and the meaning of a placeholder.
        suspects = [place for place, block in zip(places, blocks, strict=True) if block is None]
        raise Fault("the change event has no source block", suspects=suspects)
    return blocks


def meta(connector: str, source: Source, blocks: Blocks, op: Any, places: Sequence[int]) -> Part:
    """A part without columns. Raises Fault."""
    try:
        positions = source.positions(blocks)
    except PositionError as error:
        suspects = [places[i] for i in culprits(source.positions, list(blocks))]
        raise Fault(error.message, "position", suspects=suspects) from error
    try:
        times = numbers(blocks, "ts_ms")
    except OverflowError as error:
        raise Fault("source.ts_ms does not fit 64 bits", "position") from error
    return Part(
        source_index=as_places(places),
        op=op,
        commit=positions.commit,
        inner=positions.inner,
        has_commit=positions.has_commit,
        source_ts=times,
        names=stream_names(values(blocks, "name"), values(blocks, "db") if source.per_database else None),
        after={},
        before={},
        has_before=np.zeros(len(blocks), dtype=np.bool_),
        key=None,
        connector=connector,
    )


def _after(layout: Layout, images: list[Any], is_row: "Mask | None", part: Part) -> None:
    unset = msgspec.UNSET
    for column in layout.row.columns:
        values = column.values(images)
        if layout.row.tolerant:
            absent = np.array([value is unset for value in values], dtype=np.bool_)
            if absent.any():
                part.absent[column.name] = absent
                values = [None if value is unset else value for value in values]
        add_column(part, column.name, convert_column(column.name, column.converter, values))
    for name in layout.row.missing:
        part.absent[name] = np.ones(len(images), dtype=np.bool_) if is_row is None else is_row.copy()


def add_column(part: Part, name: str, converted: Converted) -> None:
    """Put a converted column into the after images."""
    part.after[name] = converted.array
    if converted.unavailable is not None:
        part.unavailable[name] = converted.unavailable
    if converted.clamped:
        part.clamped[name] += converted.clamped


def convert_column(name: str, converter: Converter, values: Any) -> Converted:
    """The converted values of one column: a list, or an array if it takes one. Raises Fault; suspects: their places."""
    try:
        return converter.convert(values)
    except DecodeError as error:
        kind = "range" if isinstance(error, OutOfRange) else "decode"
        raise Fault(f"column {name!r}: {error.message}", kind, name, culprits(converter.convert, values)) from error
    except UNCONVERTED as error:
        raise Fault(f"column {name!r}: {error}", "decode", name, culprits(converter.convert, values)) from error


def culprits(function: Callable[[Any], Any], values: Any) -> list[int]:
    """Finds the places of the values that a bulk function refuses, by halving."""
    if isinstance(values, pa.Array):
        values = values.to_pylist()
    found: list[int] = []
    waiting = [(0, len(values))] if len(values) > 1 else []
    while waiting:
        start, end = waiting.pop()
        try:
            function(values[start:end])
        except (DecodeError, PositionError, *UNCONVERTED):
            if end - start == 1:
                found.append(start)
            else:
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]
    return found


def unknown_columns(
    layout: Layout, is_row: "Mask | None", part: Part, values_of: Callable[[str], list[Any]], payloads: Sequence[bytes]
) -> list[tuple[int, UnknownColumn]]:
    """Unknown columns, each with the first event (by place in the part) that has them.

    ``values_of``: the values of a field that the table lacks, UNSET where a row has none.
    """
    out: list[tuple[int, UnknownColumn]] = []
    if layout.row.unknown and len(part):
        # A decoded before image counts as well: it is the row that is taken back where a table has no key.
        having = np.ones(len(part), dtype=np.bool_) if is_row is None else is_row
        if layout.before:
            having = having | part.has_before
        if having.any():
            out.extend((int(np.argmax(having)), column) for column in layout.row.unknown)
    for name, _ in layout.row.extras:
        values = values_of(name)
        first = next((i for i, value in enumerate(values) if value is not msgspec.UNSET), None)
        if first is not None:
            rest = (value for value in values[first:] if value is not msgspec.UNSET and value is not None)
            out.append((first, observed(name, rest, field_before(name, payloads[first]))))
    for name, _ in layout.row.reserved:
        values = values_of(name)
        if values.count(msgspec.UNSET) != len(values):
            out.append((next(i for i, value in enumerate(values) if value is not msgspec.UNSET), reserved(name)))
    for column in layout.row.columns:
        if column.never_null is not None:
            null = _nulls(column.name, part, is_row)
            if null is not None:
                out.append((null, column.never_null))
    return out


def _nulls(name: str, part: Part, is_row: "Mask | None") -> int | None:
    """The first row image with an explicit null in this column."""
    array = part.after[name]
    if not array.null_count or part.clamped[name]:
        return None
    null: Mask = array.is_null().to_numpy(zero_copy_only=False)
    if is_row is not None:
        null = null & is_row
    for other in (part.absent.get(name), part.unavailable.get(name)):
        if other is not None:
            null = null & ~other
    return int(np.argmax(null)) if null.any() else None
