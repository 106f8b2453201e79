"""The questions to a source database, and the parts that its readers share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

from ch_sink.errors import SourceError

Value = str | bytes | None
"""A value as the database writes it."""

NO_PROOF = (1 << 80) - 1
"""A position that no event reaches: whether the stream has passed the source's position shows only with time."""

OPTIONS = {
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key"),
}
"""Kind of source → what its URL may say of TLS, in the words of its driver. Others read their options themselves."""


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A table of a database."""

    kind: str
    """``postgresql``, ``mysql``, ``sqlserver`` or ``mongodb``."""
    host: str
    """Or several hosts with their ports, then ``port`` is 0."""
    port: int
    database: str
    schema: str
    """On MySQL and MongoDB the database of the table."""
    table: str
    username: str
    password: str = field(repr=False)
    url: str = ""
    """For its options: the URL without user and password."""

    @property
    def shown(self) -> str:
        """Without secrets."""
        return f"{self.schema}.{self.table} at {self.host}" + (f":{self.port}" if self.port else "")


def url_options(url: str) -> list[tuple[str, str]]:
    """The options behind a URL's question mark."""
    return parse_qsl(urlsplit(url).query, keep_blank_values=True)


class SourceReader(Protocol):
    """One table of a database. Methods raise SourceError."""

    def position(self) -> int:
        """The commit position of the newest change, as versions hold it; `NO_PROOF` if that is not known."""
        ...

    def settled(self, patience: float) -> int:
        """A position, once every change below it can be read; 0 if that takes longer than so many seconds.

        A connector may tell a change before others can read it, and a change of an open transaction has a position.
        """
        ...

    def columns(self) -> dict[str, str]:
        """Name → type of each column."""
        ...

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        """All rows, some at a time."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DocumentReader(SourceReader, Protocol):
    """A collection. `rows` gives the documents' fields as canonical Extended JSON, None for one that a document lacks.

    The name ``""`` stands for the whole document. `columns` knows ``_id`` only.
    """

    holds_documents: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a table, which another reader may read. It may travel to another process."""

    condition: str
    """SQL over the table's columns, MongoDB's bounds of ``_id`` as BSON in base64; empty for all rows."""
    snapshot: str = ""
    """Name of an exported snapshot, which lives as long as the reader that made it. Empty where there are none: then
    parts are read at different moments, after the position before and before the position after."""


@runtime_checkable
class DivisibleReader(SourceReader, Protocol):
    """A table that several connections can read at once."""

    address: SourceAddress

    def parts(self, many: int) -> list[Part]:
        """About so many parts of similar size, which hold every row once; a single one if the table cannot be divided.

        With a snapshot the reader's own transaction stays open until it is closed.
        """
        ...

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        """The rows of a part, some at a time; with a snapshot, by another reader than the one that made it."""
        ...

    def between(self, column: str, low: int | None, end: int | None) -> Part:
        """The rows with ``low <= column < end``; None for no limit."""
        ...

    def estimate(self) -> int:
        """About how many rows the table has."""
        ...


def between(name: str, low: int | None, end: int | None) -> Part:
    """The rows with ``low <= name < end``; None for no limit."""
    limits = [f"{name} >= {low}"] if low is not None else []
    return Part(" AND ".join([*limits, *([f"{name} < {end}"] if end is not None else [])]))


class SqlReader(ABC):
    """One table, over one connection of a driver: what all SQL databases are asked in the same way."""

    _connection: Any
    _errors: tuple[type[Exception], ...]
    """The errors that the driver raises."""
    _table: str
    """The table's name, quoted."""
    _names: tuple[str, ...]
    """The table's name, as `_estimate` and `_key` take it."""
    _estimate: str
    """Asks for the approximate number of rows."""
    _key: str
    """Asks for the primary key's first column, if that is an integer."""
    _hint = "Check source.url, source.table, and the user's right to SELECT from it."

    def __init__(self, address: SourceAddress) -> None:
        self.address = address

    def estimate(self) -> int:
        row = self._one(self._estimate, *self._names)
        return max(0, int(row[0] or 0)) if row else 0

    def parts(self, many: int) -> list[Part]:
        """Ranges of the primary key's first column, if that is an integer."""
        row = self._one(self._key, *self._names)
        key = self._quoted(str(row[0])) if row is not None else ""
        ends = self._one(f"SELECT MIN({key}) AS low, MAX({key}) AS high FROM {self._table}") if key else None
        if ends is None or ends[0] is None:
            return [Part("")]
        low, high = int(ends[0]), int(ends[1])
        bounds = sorted({low + (high - low) * n // many for n in range(1, many)})
        return [between(key, *both) for both in pairwise([None, *bounds, None])]

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        yield from self.rows(names, size, part.condition)

    def between(self, column: str, low: int | None, end: int | None) -> Part:
        return between(self._quoted(column), low, end)

    def rows(self, names: Sequence[str], size: int, condition: str = "") -> Iterator[list[tuple[Value, ...]]]:
        query = self._select(names, condition)
        cursor = self._unbuffered()
        try:
            cursor.execute(query)
            while batch := cursor.fetchmany(size):
                yield list(batch)
        except self._errors as error:
            raise self._failure("cannot be read", error) from None
        finally:
            self._leave(cursor)

    def close(self) -> None:
        self._connection.close()

    @abstractmethod
    def _quoted(self, name: str) -> str:
        """A column's name, quoted."""

    def _select(self, names: Sequence[str], condition: str) -> str:
        """The query of the rows that meet a condition, of all if it is empty."""
        where = f" WHERE {condition}" if condition else ""
        return f"SELECT {self._listed(names)} FROM {self._table}{where}"

    def _listed(self, names: Sequence[str]) -> str:
        """The columns of a SELECT."""
        return ", ".join(map(self._quoted, names))

    def _unbuffered(self) -> Any:
        """A cursor that does not read all rows at once."""
        return self._connection.cursor()

    def _leave(self, cursor: Any) -> None:
        cursor.close()

    def _all(self, query: str, *values: str, doing: str = "cannot be described") -> list[tuple[Any, ...]]:
        try:
            with closing(self._connection.cursor()) as cursor:
                # Without parameters the driver leaves a percent sign in a name alone.
                cursor.execute(query, values) if values else cursor.execute(query)
                return list(cursor.fetchall()) if cursor.description else []
        except self._errors as error:
            raise self._failure(doing, error) from None

    def _one(self, query: str, *values: str, doing: str = "cannot be described") -> tuple[Any, ...] | None:
        return next(iter(self._all(query, *values, doing=doing)), None)

    def _said(self, error: Exception) -> str:
        """The driver's words."""
        return str(error.args[-1] if error.args else "")

    def _failure(self, what: str, error: Exception | str) -> SourceError:
        said = error if isinstance(error, str) else self._said(error)
        return SourceError(f"source {self.address.shown} {what}: {said}", hint=self._hint)
