"""Surveys JSON payloads: which fields their row images have, and which of them are numbers."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["FIRST", "Survey", "connector_in", "first_row", "row_of", "survey"]

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
_NUMBER = frozenset(b"-0123456789")
_NUMBER_OR_NESTED = _NUMBER | frozenset(b"[{")
_NULL = msgspec.Raw(b"null")
FIRST = 16
"""How many payloads are searched for the first after image: deletes have none."""

Row = dict[str, msgspec.Raw]


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Source(msgspec.Struct, gc=False):
    source: _Connector | None = None


class _Images(msgspec.Struct, gc=False):
    after: msgspec.Raw = _NULL
    before: msgspec.Raw = _NULL


_sources = msgspec.json.Decoder(_Source)
_images = msgspec.json.Decoder(_Images)
_fields = msgspec.json.Decoder(Row | None)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the rows of several payloads look like."""

    names: tuple[str, ...]
    """Fields of the after images, in the order of first appearance."""
    most: int
    """The highest number of fields in one after image that the table lacks."""
    number: bool
    """Whether one of the fields in question is a number in any image."""


def connector_in(payload: bytes) -> str:
    """``source.connector`` of a payload; empty if it has none."""
    try:
        found = _sources.decode(payload).source
    except _UNREADABLE:
        return ""
    return found.connector if found is not None else ""


def row_of(payload: bytes) -> Row | None:
    """The fields of a payload's after image; None if it has none."""
    try:
        row: Row | None = _fields.decode(_images.decode(payload).after)
    except _UNREADABLE:
        return None
    return row


def first_row(payloads: Sequence[bytes]) -> Row | None:
    """The fields of the first after image among the first payloads."""
    for payload in payloads[:FIRST]:
        row = row_of(payload)
        if row is not None:
            return row
    return None


def survey(payloads: Iterable[bytes], known: Collection[str], in_question: Collection[str]) -> Survey:
    """Survey all payloads; those that are not the JSON of an event are ignored.

    ``known``: fields that the table has. ``in_question``: fields in which numbers are searched for, in both images.
    """
    names: dict[str, None] = {}
    most, number = 0, False
    own = frozenset(known)
    for payload in payloads:
        try:
            images: Any = _images.decode(payload)
        except _UNREADABLE:
            continue
        for place, raw in enumerate((images.after, images.before)):
            try:
                row = _fields.decode(raw)
            except _UNREADABLE:
                continue
            if row is None:
                continue
            if not place:
                names.update(dict.fromkeys(row))
                most = max(most, len(row.keys() - own))
            number = number or has_number(row, in_question, nested=True)
    return Survey(tuple(names), most, number)


def has_number(row: Row, names: Iterable[str], *, nested: bool = False) -> bool:
    """Whether one of these fields is a number. ``nested``: or an array or object, which may contain one."""
    wanted = _NUMBER_OR_NESTED if nested else _NUMBER
    return any(memoryview(row[name])[0] in wanted for name in names if name in row)
