"""Keys of change events: from the Kafka key, else from the row image."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.assemble import Mask, Part
from ch_sink.decode.json.columns import Fault, fails
from ch_sink.decode.kafka_keys import KeyReader
from ch_sink.decode.mongodb import take_key
from ch_sink.decode.native.joined import Joined
from ch_sink.decode.native.library import library
from ch_sink.errors import DecodeError
from ch_sink.model.change import Op, Records

__all__ = ["give_key", "pick"]

_MOVED = (
    "let the connector state the key (message.key.columns), which sends a delete of the former one, too; "
    "`ch_sink repair --against source` mends the row"
)


def give_key(part: Part, records: Records, keys: KeyReader) -> None:
    """Give a part its key columns, also in the images that lack them. Raises Fault."""
    _fill(part, records, keys)
    _refuse_nulls(part, keys)
    if keys.of_documents:
        take_key(part)
    else:
        _from_key(part)


def _refuse_nulls(part: Part, reader: KeyReader) -> None:
    for name in reader.never_null:
        array = (part.key or {}).get(name)
        if array is None or not array.null_count:
            continue
        # The server would store the column's default, which is the key of another row.
        null = array.is_null().to_numpy(zero_copy_only=False) & (part.op != Op.TRUNCATE)
        if null.any():
            reason = f"key column {name!r}: the key is null, but the table's column cannot hold null"
            places = part.source_index[null].tolist()
            raise Fault(reason, "key", name, places if len(part) > 1 else ())


def _fill(part: Part, records: Records, reader: KeyReader) -> None:
    """Fill in the part's key columns: from the Kafka key, else from the row image. Raises Fault."""
    keys = pick(records.keys, part.source_index.tolist())
    columns = reader.columns
    if not columns:
        _refuse(part, keys, reader)
        return
    given = _given(keys)
    try:
        arrays = reader.read(given)
    except DecodeError as error:
        places = part.source_index.tolist()
        suspects = [p for p, key in zip(places, keys, strict=True) if key is not None and _is_bad(key, reader)]
        raise Fault(error.message, "key", suspects=suspects if len(keys) > 1 else ()) from error
    found = dict(zip(columns, arrays, strict=True))
    part.key = found if len(given) == len(keys) else _merge_keys(part, keys, found, reader.types)


def _given(keys: list[bytes | None]) -> list[bytes]:
    """The keys that are there."""
    if library() is not None and None not in keys:
        together = Joined(keys)  # type: ignore[arg-type]
        if not (together.lengths == len(b"null")).any():
            return together
    return [key for key in keys if key is not None and key != b"null"]


def _refuse(part: Part, keys: Sequence[bytes | None], reader: KeyReader) -> None:
    """The key columns are still unknown, so records with unreadable keys are bad. Raises Fault."""
    given = [(place, key) for place, key in zip(part.source_index.tolist(), keys, strict=True) if key is not None]
    for _, key in given:
        if key != b"null":
            try:
                reader.read([key])
            except DecodeError as error:
                suspects = [place for place, key in given if _is_bad(key, reader)]
                raise Fault(error.message, "key", suspects=suspects if len(keys) > 1 else ()) from error
            return


def _is_bad(key: bytes, reader: KeyReader) -> bool:
    return key != b"null" and fails(reader.read, [key])


def pick(values: Sequence[Any], index: Sequence[int]) -> list[Any]:
    """The values at ascending places."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return list(values[index[0] : index[-1] + 1])
    return [values[i] for i in index]


def _merge_keys(
    part: Part, keys: Sequence[bytes | None], given: dict[str, pa.Array], types: list[pa.DataType]
) -> dict[str, pa.Array]:
    """Key columns if some records have no Kafka key: null for truncates, the image's values for the others.

    Raises Fault if an image lacks a column, or if an update changes one: it would have to be two changes, and the row
    would stay under its former key.
    """
    n = len(part)
    has_key = np.array([key is not None and key != b"null" for key in keys], dtype=np.bool_)
    truncate = part.op == Op.TRUNCATE
    deleted = part.op == Op.DELETE
    place = np.cumsum(has_key) - 1
    nowhere, everywhere = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    out: dict[str, pa.Array] = {}
    for (name, array), arrow in zip(given.items(), types, strict=True):
        after = part.after.get(name, pa.nulls(n, arrow))
        before = part.before.get(name, pa.nulls(n, arrow))
        lacks_after = part.absent.get(name, everywhere) if name in part.after else nowhere
        lacks_before = ~part.has_before if name in part.before else nowhere
        if bool((~has_key & ~truncate & np.where(deleted, lacks_before, lacks_after)).any()):
            raise Fault(f"the record has no Kafka key, and neither of its row images has {name!r}", "key", name)
        if name in part.before:
            _refuse_moves(part, name, before, after, ~has_key & (part.op == Op.UPDATE) & part.has_before)
        pool = pa.concat_arrays([array, after, before, pa.nulls(1, arrow)])
        rows = np.arange(n)
        image = np.where(deleted, len(array) + n + rows, len(array) + rows)
        where = np.where(has_key, place, np.where(truncate, len(pool) - 1, image))
        out[name] = pool.take(pa.array(where))
    return out


def _refuse_moves(part: Part, name: str, before: pa.Array, after: pa.Array, updates: Mask) -> None:
    """Refuse updates (a mask) without a Kafka key that change a key column."""
    if not updates.any():
        return
    both = pa.concat_arrays([before, after])
    if pa.types.is_nested(both.type):
        both = pa.array([repr(value) for value in both.to_pylist()])
    # Codes and not values: null equals null, and NaN equals NaN.
    codes = both.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    moved = updates & (codes[: len(before)] != codes[len(before) :])
    if moved.any():
        reason = f"the record has no Kafka key, and the update changes {name!r}, a column of key_columns: {_MOVED}"
        places = part.source_index[moved].tolist()
        raise Fault(reason, "key", name, places if len(part) > 1 else ())


def _from_key(part: Part) -> None:
    """Add key columns to the images that lack them, such as the one that a topic router adds to the key only."""
    if not len(part):
        return
    for name, array in (part.key or {}).items():
        lacks = part.absent.pop(name, None)
        if name not in part.after:
            lacks = np.ones(len(part), dtype=np.bool_)
        if lacks is not None:
            gone = np.isin(part.op, (Op.DELETE, Op.TRUNCATE))
            part.after[name] = _filled(part.after.get(name), lacks & ~gone, array)
        if part.before:
            before = part.before.get(name)
            null = True if before is None else before.is_null().to_numpy(zero_copy_only=False)
            part.before[name] = _filled(before, part.has_before & null, array)


def _filled(image: pa.Array | None, where: Mask, key: pa.Array) -> pa.Array:
    """A column of an image (None: null everywhere) with the key's values at some places."""
    return pc.if_else(pa.array(where), key, pa.scalar(None, key.type) if image is None else image)
