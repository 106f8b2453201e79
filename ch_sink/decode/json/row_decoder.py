"""JSON payloads of one framing to Structs, by the layout that fits their row images.

A schema declares the fields of the images. Schemaless images are expected to have the fields of the first one; this is
the fast layout, in which every field is required. If it does not fit, any field may be absent, and all payloads are
searched for fields and kinds of literals that the first one does not show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ch_sink.decode.framing import Framed
from ch_sink.decode.json.aliases import with_names
from ch_sink.decode.json.columns import UNREADABLE, Fault, fails
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.json.survey import Row, first_row, has_number, survey
from ch_sink.errors import DecodeError
from ch_sink.table.model import TargetTable

__all__ = ["KEPT", "Build", "RowDecoder", "RowFields"]

_MOST_UNKNOWN = 1000
"""Fields of a schemaless row that the table may lack; a row with more is a bad record."""
KEPT = 256
"""Layouts that are remembered."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """The fields of schemaless rows."""

    expected: frozenset[str]
    """Columns of the table that every row has, if ``strict``."""
    extras: tuple[str, ...]
    """Fields that the table lacks and that rows may have."""
    strict: bool


Build = Callable[[Framed, str, RowFields | None, bool], Layout]
"""Makes the layout of a framing for a connector: of schemaless rows with these fields; with decimals as JSON numbers.
Raises DecodeError."""


Chosen = tuple[Layout, RowFields | None, bool]
"""A layout, and by which fields and kind of decimals it was chosen."""


class RowDecoder:
    """Decodes groups of payloads with row images of one table."""

    def __init__(self, table: TargetTable, build: Build) -> None:
        self._build = build
        self._columns = frozenset(c.name for c in table.source_columns)
        self._names = frozenset(c.name for c in table.columns)
        self._every = RowFields(self._columns, (), strict=True)
        self.layout = lru_cache(KEPT)(self._layout)
        self._read_otherwise = lru_cache(KEPT)(self._numbers_differ)

    def decode(
        self,
        framed: Framed,
        payloads: list[bytes],
        connector: str,
        *,
        chosen: Chosen | None = None,
        before_lenient: Callable[[], None] | None = None,
    ) -> tuple[Layout, list[Any]]:
        """The payloads' Structs, and their layout. Raises Fault, whose suspects are places in ``payloads``.

        ``chosen``: the layout to try first, if it is known already.
        ``before_lenient``: called before schemaless rows are read that do not all have the same fields.
        """
        layout, fields, numbers = chosen or self.choose(framed, payloads, connector)
        rows = layout.usual.decode(payloads) if layout.usual is not None else None
        if rows is not None:
            return layout, rows
        try:
            rows = list(map(layout.decode, payloads))
            if layout.usual is not None:
                layout.usual.learn(rows)
            return layout, rows
        except UNREADABLE as error:
            fault = error
        if layout.images is not None or not isinstance(fault, msgspec.ValidationError):
            raise _fault(fault, layout, payloads) from fault
        if fields is not None:
            if before_lenient is not None:
                before_lenient()
            lenient = self.layout(framed, connector, RowFields(self._columns, fields.extras, strict=False), numbers)
            try:
                return lenient, list(map(lenient.decode, payloads))
            except UNREADABLE:
                pass
        return self._after_survey(framed, payloads, connector, fields, numbers, fault)

    def choose(self, framed: Framed, payloads: list[bytes], connector: str) -> Chosen:
        """The layout that is tried first: that of payloads whose rows are all like the first one. Raises Fault."""
        row = first_row(payloads) if framed.schema is None or self._may_hold_numbers(framed, connector) else None
        fields = self._fields_of(row) if framed.schema is None else None
        numbers = row is not None and has_number(row, self._read_otherwise(framed, connector, fields))
        return self.layout(framed, connector, fields, numbers), fields, numbers

    def _after_survey(
        self,
        framed: Framed,
        payloads: list[bytes],
        connector: str,
        fields: RowFields | None,
        numbers: bool,
        fault: Exception,
    ) -> tuple[Layout, list[Any]]:
        """Decode by the layout that all payloads together require. Raises Fault."""
        in_question = self._read_otherwise(framed, connector, fields)
        seen = survey(payloads, self._names, in_question)
        if seen.most > _MOST_UNKNOWN:
            reason = f"the row has more than {_MOST_UNKNOWN} fields that the table lacks"
            raise Fault(reason, suspects=self._with_many_fields(payloads))
        if fields is not None:
            extras = tuple(name for name in seen.names if name not in self._names)
            fields = RowFields(self._columns, extras, strict=False)
        layout = self.layout(framed, connector, fields, numbers or seen.number)
        try:
            return layout, list(map(layout.decode, payloads))
        except UNREADABLE as error:
            raise _fault(error, layout, payloads) from fault

    def _with_many_fields(self, payloads: list[bytes]) -> list[int]:
        if len(payloads) == 1:
            return []
        looks = (survey([payload], self._names, ()) for payload in payloads)
        return [i for i, look in enumerate(looks) if look.most > _MOST_UNKNOWN]

    def _fields_of(self, row: Row | None) -> RowFields:
        """The fields of rows like this one."""
        if row is None:
            return self._every
        expected = self._columns.intersection(row)
        extras = tuple(name for name in row if name not in self._names) if len(expected) < len(row) else ()
        return RowFields(expected, extras[:_MOST_UNKNOWN], strict=True)

    def _may_hold_numbers(self, framed: Framed, connector: str) -> bool:
        return bool(self._read_otherwise(framed, connector, None))

    def _numbers_differ(self, framed: Framed, connector: str, fields: RowFields | None) -> tuple[str, ...]:
        """Columns that are read differently if decimals are JSON numbers (``decimal.format=NUMERIC``)."""
        one, other = (self.layout(framed, connector, fields, numbers) for numbers in (False, True))
        pairs = zip(one.before_columns, other.before_columns, strict=True)
        return tuple(a.name for a, b in pairs if a.converter.wire != b.converter.wire)

    def _layout(self, framed: Framed, connector: str, fields: RowFields | None, numbers: bool) -> Layout:
        try:
            return self._build(framed, connector, fields, numbers)
        except DecodeError as error:
            raise Fault(error.message) from error


def _fault(error: Exception, layout: Layout, payloads: list[bytes]) -> Fault:
    text, column = f"not the JSON of a change event: {error}", None
    if isinstance(error, msgspec.ValidationError):
        text = with_names(str(error))
        column = _column_in(text)
    elif isinstance(error, RecursionError):
        text = "the JSON is nested too deeply"
    suspects = [] if len(payloads) == 1 else [i for i, payload in enumerate(payloads) if fails(layout.decode, payload)]
    return Fault(text, column=column, suspects=suspects)


def _column_in(text: str) -> str | None:
    """The column that msgspec's message names by its path; only the dead letter shows it, nothing depends on it."""
    for image in ("after", "before"):
        _, found, rest = text.partition(f"`$.{image}.")
        if found:
            return rest.partition("`")[0].split("[")[0].split(".")[0]
    return None
