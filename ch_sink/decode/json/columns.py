"""Decoded JSON envelopes of one shape to columns."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.decode.event_form import classify, row_operations
from ch_sink.decode.json.layout import NOTHING, ColumnReader, Image, Layout, literals, others, texts_of
from ch_sink.decode.parts import Fault, Mask, Part, Read, as_places, skipped
from ch_sink.decode.unknown_columns import field_before, observed, reserved
from ch_sink.errors import DecodeError, PositionError
from ch_sink.model.change import Op, SkippedPlaces, UnknownColumn
from ch_sink.sources import Source
from ch_sink.sources.base import Blocks, numbers, source_tables, stream_names, values
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
        rest: list[int] = []
        for i, found in enumerate(ops):
            (keep if found in row_operations else rest).append(i)
        gone = skipped(lambda i: classify(ops[i], payloads[i]), rest, [places[i] for i in rest])
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
        for i in np.flatnonzero(~is_row).tolist():
            images[i] = NOTHING
    try:
        _after(layout, images, is_row, part)
        _before(layout, [row.before for row in rows], part)
    except Fault as fault:
        fault.suspects = part.source_index[list(fault.suspects)].tolist()
        raise
    return Read(part, gone, unknown_columns(layout, is_row, part, _reported(layout, images), payloads))


def _check_images(op: Any, images: list[Any], places: Sequence[int]) -> "Mask | None":
    """The events whose after image counts; None for all. Raises Fault if an event lacks one that it needs."""
    if None not in images and not ((op == Op.DELETE) | (op == Op.TRUNCATE)).any():
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
        tables=source_tables(blocks),
        after={},
        before={},
        has_before=np.zeros(len(blocks), dtype=np.bool_),
        key=None,
        connector=connector,
    )


def _after(layout: Layout, images: list[Image], is_row: "Mask | None", part: Part) -> None:
    _refuse_unknown(layout, images)
    for column in layout.row.columns:
        texts = texts_of(images, column.name)
        absent = _absent(texts, is_row)
        if absent is not None and layout.row.declared is not None:
            reason = f"column {column.name!r}: the row lacks this field, which its schema declares"
            raise Fault(reason, column=column.name, suspects=np.flatnonzero(absent).tolist())
        if absent is not None:
            part.absent[column.name] = absent
        add_column(part, column.name, _converted(column, texts))
    for name in layout.row.missing:
        part.absent[name] = np.ones(len(images), dtype=np.bool_) if is_row is None else is_row.copy()


def _before(layout: Layout, befores: list[Any], part: Part) -> None:
    if befores.count(None) == len(befores):
        return
    part.has_before = np.fromiter([before is not None for before in befores], np.bool_, len(befores))
    if not layout.before:
        return
    images = [NOTHING if before is None else before for before in befores]
    for column in layout.row.columns:
        texts = texts_of(images, column.name)
        part.before[column.name] = _converted(column, texts).array
        absent = _absent(texts, part.has_before)
        if absent is not None:
            part.absent_before[column.name] = absent
    for name in layout.row.missing:
        part.absent_before[name] = part.has_before.copy()


def _absent(texts: list[Any], is_row: "Mask | None") -> "Mask | None":
    """The rows that lack a field; None for none."""
    if None not in texts:
        return None
    absent = np.fromiter([text is None for text in texts], np.bool_, len(texts))
    if is_row is not None:
        absent &= is_row
    return absent if absent.any() else None


def _converted(column: ColumnReader, texts: list[Any]) -> Converted:
    return convert_column(column.name, column.converter, literals(column.name, column.converter.wire, texts))


def _refuse_unknown(layout: Layout, images: list[Image]) -> None:
    """Raises Fault for rows with fields that their schema does not declare, and for rows with too many."""
    declared = layout.row.declared
    if declared is not None:
        if others(images, declared):
            wrong = [i for i, image in enumerate(images) if not declared.issuperset(image)]
            name = next(name for name in images[wrong[0]] if name not in declared)
            raise Fault(f"the row has the field {name!r}, which its schema does not declare", suspects=wrong)
        return
    room = MOST_UNKNOWN + len(layout.row.columns)
    wide = [i for i, image in enumerate(images) if len(image) > room]
    wide = [i for i in wide if sum(map(layout.reports, images[i])) > MOST_UNKNOWN]
    if wide:
        raise Fault(f"the row has more than {MOST_UNKNOWN} fields that the table lacks", suspects=wide)


MOST_UNKNOWN = 1000
"""Fields of a schemaless row that the table may lack; a row with more is a bad record."""
Reported = dict[str, tuple[int, list[msgspec.Raw]]]
"""Fields that are reported, each with the first event (by place in the part) that has it, and its texts from there."""


def _reported(layout: Layout, images: list[Image]) -> Reported:
    found: Reported = {}
    names = set() if layout.row.declared is not None else set(chain.from_iterable(images)) - layout.row.known
    wanted = set(filter(layout.reports, names))
    if wanted:
        for i, image in enumerate(images):
            for name in filter(wanted.__contains__, image):
                found.setdefault(name, (i, []))[1].append(image[name])
    return found


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
    layout: Layout, is_row: "Mask | None", part: Part, reported: Reported, payloads: Sequence[bytes]
) -> list[tuple[int, UnknownColumn]]:
    """Unknown columns, each with the first event (by place in the part) that has them."""
    out: list[tuple[int, UnknownColumn]] = []
    if layout.row.unknown and len(part):
        # A decoded before image counts as well: it is the row that is taken back where a table has no key.
        having = np.ones(len(part), dtype=np.bool_) if is_row is None else is_row
        if layout.before:
            having = having | part.has_before
        if having.any():
            out.extend((int(np.argmax(having)), column) for column in layout.row.unknown)
    for name, (first, texts) in reported.items():
        if name in layout.row.reserved:
            out.append((first, reserved(name)))
        else:
            out.append((first, observed(name, texts, field_before(name, payloads[first]))))
    for column in layout.row.columns:
        if column.never_null is not None:
            null = _nulls(column.name, part, is_row)
            if null is not None:
                out.append((null, column.never_null))
    return out


def _nulls(name: str, part: Part, is_row: "Mask | None") -> int | None:
    """The first row image with an explicit null in this column."""
    array = part.after[name]
    if not array.null_count:
        return None
    null: Mask = array.is_null().to_numpy(zero_copy_only=False)
    if is_row is not None:
        null = null & is_row
    for other in (part.absent.get(name), part.unavailable.get(name)):
        if other is not None:
            null = null & ~other
    return int(np.argmax(null)) if null.any() else None
