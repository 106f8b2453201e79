"""Which column of a table gets which part of a document."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ch_sink.decode.mongodb.targets import TEXTS, document_converter, into
from ch_sink.decode.mongodb.texts import canonical_text, key_text, plain_text, text_of, typed_key_text
from ch_sink.decode.mongodb.updates import MISSING, Path, Update, at
from ch_sink.decode.mongodb.values import parse
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column, Years

__all__ = ["ID", "DocumentColumn", "DocumentTable", "key_column_name", "key_writer"]

ID = ("_id",)


@dataclass(frozen=True, slots=True)
class DocumentColumn:
    """One column: the path of its value in the document (empty: the whole document), and its converter."""

    name: str
    path: Path
    converter: Converter
    text: bool
    """The column holds its part as JSON text, so that a change inside that part can be applied to what is stored."""
    plain: bool = False
    """It holds the plain JSON of its part, a string without its quotes; equal numbers of a key have one text."""

    def pick(self, document: Any) -> Any:
        """The column's part of a document; None if the document lacks it."""
        found = at(document, self.path)
        return None if found is MISSING else found


class DocumentTable:
    """The columns of a target for documents.

    A column gets the field of its name, or the path that ``document.columns`` gives it; the column named in
    ``document.column`` gets the whole document. Raises TableError if a column's type cannot hold its value.
    """

    def __init__(self, table: TargetTable, policy: Policy) -> None:
        self.typed = policy.documents.form == "extended"
        self._evolves = policy.changes.evolve == "add_columns"
        self._may_be_null = policy.changes.on_unresolved == "null"
        self._write: Callable[[Any], bytes] = canonical_text if self.typed else plain_text
        paths = {name: tuple(path.split(".")) for name, path in policy.documents.columns}
        unknown = sorted(paths.keys() - {c.name for c in table.source_columns})
        if unknown:
            raise TableError(
                f"document.columns names {', '.join(unknown)}, which {table.qualified} lacks",
                hint="add the column to the table, or take it out of document.columns",
            )
        self.key = key_column_name(policy)
        columns: list[DocumentColumn] = []
        for column in table.source_columns:
            path = ID if column.name == self.key else paths.get(column.name, (column.name,))
            whole = column.name == policy.documents.column and column.name not in paths and _holds(column)
            columns.append(self._column(column, () if whole else path, policy, table.years))
        self.columns = tuple(columns)
        self.document = next((c for c in columns if c.path == ()), None)
        self.reserved = table.system_columns
        named = {c.name for c in table.columns} - self.reserved
        self._known = named | {c.path[0] for c in columns if c.path}

    def _column(self, column: Column, path: Path, policy: Policy, years: Years) -> DocumentColumn:
        if path == ():
            return DocumentColumn(column.name, path, document_converter(column, self._write), True)
        made = into(column, policy.values, years, key_writer(policy) if path == ID else text_of)
        kind = parse_type(column.type).bare.name
        plain = kind == "String" and (path != ID or policy.documents.keys == "plain")
        return DocumentColumn(column.name, path, made, kind in TEXTS, plain)

    def reader(self, column: DocumentColumn) -> Callable[[Sequence[str | bytes | None]], pa.Array]:
        """A function from Extended JSON of the field that the column's path begins with to the column's values.

        For a column of the whole document it takes that. It raises DecodeError.
        """
        field = DocumentColumn(column.name, column.path[1:], column.converter, column.text)

        def read(texts: Sequence[str | bytes | None]) -> pa.Array:
            parts = [None if text is None else field.pick(parse(text, typed=self.typed)) for text in texts]
            return column.converter.convert(parts).array

        return read

    def unknown_fields(self, document: Any) -> list[str]:
        """Fields of a document without a column; none if a column holds the whole document.

        Raises DecodeError if one of them should become a column but cannot.
        """
        if self.document is not None or not isinstance(document, dict) or document.keys() <= self._known:
            return []
        if self._evolves and "" in document:
            raise DecodeError("a field without a name can be no column: only a column for the whole document holds it")
        return [name for name in document if name not in self._known]

    def change(self, column: DocumentColumn, update: Update) -> Callable[[Any], pa.Array]:
        """A function that applies an update to the column's stored value, for changes inside that value.

        It takes the stored text and returns an array of the one new value; it raises DecodeError.
        """

        def changed(stored: Any) -> pa.Array:
            if column.path == () and not stored:
                return column.converter.convert([None]).array  # an unknown document stays unknown
            after = update.apply(self._stored(stored, column))
            return column.converter.convert([None if after is MISSING else after]).array

        return changed

    def derived(self, column: DocumentColumn) -> Callable[[Any], pa.Array]:
        """A function from the stored text of the whole document to the column's value; it raises DecodeError.

        A row may lack the text: it was stored before the table had a column for it, or the document is unknown.
        """

        def derive(document: Any) -> pa.Array:
            if not document and self.document is not None and not self._may_be_null:
                raise DecodeError(f"column {self.document.name!r} does not hold this document yet")
            known = column.pick(parse(document, typed=self.typed)) if document else None
            return column.converter.convert([known]).array

        return derive

    def beside(self, column: DocumentColumn, update: Update) -> Callable[[Any], pa.Array]:
        """Like `change`, for a row with this text but no document; if both are unknown, the value stays unknown."""
        change = self.change(column, update)

        def changed(stored: Any) -> pa.Array:
            unknown = not stored and self._may_be_null
            return column.converter.convert([None]).array if unknown else change(stored)

        return changed

    def _stored(self, stored: Any, column: DocumentColumn) -> Any:
        """The value of a stored text; text that is not JSON is a string."""
        if stored is None:
            return MISSING
        try:
            return parse(stored, typed=self.typed)
        except DecodeError:
            if column.path == ():
                raise DecodeError(f"the stored document in column {column.name!r} is not JSON") from None
            return stored


def _holds(column: Column) -> bool:
    return parse_type(column.type).bare.name in TEXTS


def key_writer(policy: Policy) -> Callable[[Any], str | bytes | None]:
    """The function that returns the text of an ``_id``."""
    return typed_key_text if policy.documents.keys == "typed" else key_text


def key_column_name(policy: Policy) -> str:
    """The column of the document's ``_id``: the configured key column, the one with that path, else ``_id``."""
    if len(policy.keys.columns) == 1:
        return policy.keys.columns[0]
    return next((name for name, path in policy.documents.columns if path == "_id"), "_id")
