"""What is asked of a source database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["SourceAddress", "SourceReader", "Value"]

Value = str | bytes | None
"""A value as the database writes it."""


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A table of a database."""

    kind: str
    """``postgresql`` or ``mysql``."""
    host: str
    port: int
    database: str
    schema: str
    """On MySQL the database of the table."""
    table: str
    username: str
    password: str = field(repr=False)

    @property
    def shown(self) -> str:
        """Without secrets."""
        return f"{self.schema}.{self.table} at {self.host}:{self.port}"


class SourceReader(Protocol):
    """One table of a database. Methods raise SourceError."""

    def position(self) -> int:
        """The commit position of the newest change, as versions hold it."""
        ...

    def columns(self) -> dict[str, str]:
        """Name → type of each column."""
        ...

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        """All rows, some at a time."""
        ...

    def close(self) -> None: ...
