"""Values of a topic. JSON that repeats its schema is most of its bytes: the text before the payload is kept once.

It is a matter of memory and speed only: each value is what it was, down to the byte.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import overload

import numpy as np
import numpy.typing as npt

_BEGIN = b'{"schema":'
_PAYLOAD = b',"payload":'
_CLOSE = ord("}")


@dataclass(frozen=True, slots=True, eq=False)
class Enclosed(Sequence[bytes | None]):
    """Values ``head + part + "}"``, or the part alone where the head is empty, or null where the part is.

    Equal heads share one object where possible. Behind a head, no part is empty.
    """

    heads: list[bytes]
    parts: list[bytes | None]

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> "Enclosed": ...

    def __getitem__(self, place: int | slice) -> "bytes | Enclosed | None":
        if isinstance(place, slice):
            return Enclosed(self.heads[place], self.parts[place])
        return _whole(self.heads[place], self.parts[place])

    def __iter__(self) -> Iterator[bytes | None]:
        return map(_whole, self.heads, self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Enclosed) and list(self) == list(other)

    def only_head(self) -> bytes | None:
        """The head that all of them have; None if they differ or there are none."""
        heads = self.heads
        return heads[0] if heads and heads.count(heads[0]) == len(heads) else None


Values = Sequence[bytes | None]


def enclosed(values: Values, head: bytes = b"") -> Values:
    """The same values, their schemas' texts kept once. ``head``: one that they probably have."""
    if isinstance(values, Enclosed):
        return values
    if head:
        start = len(head)
        parts = [None if v is None else v[start:-1] if v.startswith(head) and v[-1] == _CLOSE else b"" for v in values]
        if b"" not in parts:
            return Enclosed([head] * len(parts), parts)
    known: dict[bytes, bytes] = {}
    heads, parts = [], []
    for value in values:
        found = known.setdefault(own, own) if value is not None and (own := _head(value)) else b""
        heads.append(found)
        parts.append(value if value is None or not found else value[len(found) : -1])
    return Enclosed(heads, parts) if known else values


def inner(values: Values) -> Sequence[bytes | None]:
    """The values without what is kept apart: null where the value is null, and empty where it is empty."""
    return values.parts if isinstance(values, Enclosed) else values


def taken(values: Values, places: Sequence[int]) -> Values:
    """The values at these places, in that order."""
    parts = inner(values)
    found = [parts[i] for i in places]
    return Enclosed([values.heads[i] for i in places], found) if isinstance(values, Enclosed) else found


def concatenated(parts: Sequence[Values]) -> Values:
    """The values of all parts, one after the other. If some are `enclosed`, all that can be are."""
    if len(parts) == 1:
        return parts[0]
    if not any(isinstance(part, Enclosed) for part in parts):
        return list(chain.from_iterable(map(inner, parts)))
    # How the records came must not show: `net_lengths` decides where chunks end, the same on every attempt.
    parts = [enclosed(part) for part in parts]
    found = list(chain.from_iterable(map(inner, parts)))
    heads = (part.heads if isinstance(part, Enclosed) else [b""] * len(part) for part in parts)
    return Enclosed(list(chain.from_iterable(heads)), found)


def lengths(values: Values) -> npt.NDArray[np.int64]:
    """Bytes of each value, 0 for null."""
    parts = inner(values)
    if None in parts:
        parts = [part or b"" for part in parts]
    found = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))  # type: ignore[arg-type]
    if isinstance(values, Enclosed):
        heads = np.fromiter(map(len, values.heads), dtype=np.int64, count=len(parts))
        found += np.where((heads > 0) & (found > 0), heads + 1, 0)
    return found


def net_lengths(values: Values, head: bytes = b"") -> tuple[npt.NDArray[np.int64], bytes]:
    """Bytes of each value, where a schema's text counts only if it is not that of the value before; the last such text.

    ``head``: that of the last value before. All values with a schema must be `enclosed`.
    """
    found = lengths(inner(values))
    if not isinstance(values, Enclosed):
        return found, head
    if values.only_head() == head:
        return found, head
    for place, (own, part) in enumerate(zip(values.heads, values.parts, strict=True)):
        if own and part is not None and own != head:
            head = own
            found[place] += len(own)
    return found, head


def _head(value: bytes) -> bytes:
    """The text before the payload of JSON with a schema; empty for anything else."""
    if not value.startswith(_BEGIN) or value[-1] != _CLOSE:
        return b""
    end = value.find(_PAYLOAD) + len(_PAYLOAD)
    return value[:end] if len(_PAYLOAD) <= end < len(value) - 1 else b""


def _whole(head: bytes, part: bytes | None) -> bytes | None:
    return head + part + b"}" if head and part is not None else part


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic at one moment. By partition, ``low`` is the first offset held and ``high`` the one after the last.

    ``high`` is the last stable offset under ``read_committed``: nothing of an open transaction lies below it.
    """

    topic: str
    topic_id: str
    low: dict[int, int]
    high: dict[int, int]
    whole: bool = True
    """These are all partitions of the topic; else it may have others."""
    asked: float = field(default_factory=time.monotonic, compare=False)
    """The time of asking the broker, in seconds of this process's steady clock: a later look has a later time."""


@dataclass(frozen=True, slots=True, order=True)
class SourceTable:
    """The source table that an event's source block names; empty fields where it names none."""

    database: str = ""
    schema: str = ""
    table: str = ""

    @property
    def name(self) -> str:
        """The table's whole name, as ``source_table`` takes it."""
        return ".".join(part for part in (self.database, self.schema, self.table) if part)

    def may_be(self, name: str) -> bool:
        """Whether a name can mean the table, though one of the two may leave out the schema or the database."""
        return is_part(self.name, name) or is_part(name, self.name) or name == f"{self.database}.{self.table}"


def source_table_of(name: str, like: SourceTable) -> SourceTable:
    """The table of a whole name; of two parts, the first is the database unless only schemas are stated in ``like``."""
    *before, table = name.split(".", 2)
    if len(before) == 2:
        return SourceTable(before[0], before[1], table)
    place = "".join(before)
    return SourceTable("", place, table) if like.schema and not like.database else SourceTable(place, "", table)


def is_part(name: str, whole: str) -> bool:
    """Whether a table's name is this whole one, without the schema or the database that precede it."""
    return f".{whole}".endswith(f".{name}")
