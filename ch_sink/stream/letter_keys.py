"""Later records of the rows of dead letters, found by their Kafka keys."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.model.change import Records

__all__ = ["KeyValues", "LaterRecords", "last_offsets", "later_records"]

KeyValues = Callable[[list[bytes]], Sequence[tuple[Any, ...] | None]]
"""The values of each key, equal for keys of one row; None for a key that cannot be read."""

_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class LaterRecords:
    """What a topic holds behind a letter."""

    keys: Mapping[bytes, int]
    """The last offset of each Kafka key; the empty one stands for none."""
    compacted: Collection[int] = ()
    """Letters whose own records are gone from between others: a later one of the key was sent, and may be gone too."""


def later_records(slices: Iterable[Records], first: int, end: int, letters: Collection[int]) -> LaterRecords:
    """Of the records of [first, end), without those that are letters; their offsets tell whether they are there."""
    keys, held = dict[bytes, int](), set[int]()
    for records in slices:
        for key, offset in zip(records.keys, records.offsets.tolist(), strict=True):
            if offset in letters:
                held.add(offset)
            else:
                keys[key or b""] = offset
    return LaterRecords(keys, {offset for offset in letters if first <= offset < end} - held)


def last_offsets(mine: Sequence[bytes], later: Mapping[bytes, int], values: KeyValues) -> list[int]:
    """The offset of the last record of the same row as each of these Kafka keys, −1 if there is none.

    Keys of one row need not be the same bytes: their schema may have changed since, or fields that are left out.

    Args:
        mine: empty for a record without a key, whose row may be that of any other one.
        later: the last offset of each Kafka key; the empty one stands for none.
    """
    own = sorted({key for key in mine if key})
    rows = dict(zip(own, map(_text, values(own)), strict=True)) if own else {}
    wanted = set(rows.values()) - {""}
    last: dict[str, int] = {}
    others = [key for key in later if key and key not in rows] if wanted else []
    for first in range(0, len(others), _AT_ONCE):
        some = others[first : first + _AT_ONCE]
        for key, row in zip(some, map(_text, values(some)), strict=True):
            if row in wanted:
                last[row] = max(later[key], last.get(row, -1))
    return [max(later.get(key, -1), last.get(rows.get(key, ""), -1)) for key in mine]


def _text(row: tuple[Any, ...] | None) -> str:
    """Values as text, since arrays can be no keys of a dict; empty if they are not known."""
    return "" if row is None else repr(row)
