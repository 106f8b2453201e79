"""A column of a ClickHouse table, and the range of years that the server holds."""

from dataclasses import dataclass

from ch_sink.types.connect import SourceType

__all__ = ["WIDE_YEARS", "Column", "Years"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``type`` is ClickHouse's text of it."""

    name: str
    type: str
    default_kind: str = ""
    """Empty, DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL."""
    default_expression: str = ""
    comment: str = ""
    note: str = ""
    """The source type that a schema of the events declared, from the sink's own table; empty if none is known."""

    @property
    def stated(self) -> SourceType | None:
        """The source type that the comment states, else the note; None if neither does."""
        return SourceType.from_comment(self.comment) or SourceType.from_comment(f"debezium: {self.note}")

    @property
    def insertable(self) -> bool:
        return self.default_kind not in ("MATERIALIZED", "ALIAS")

    @property
    def stored(self) -> bool:
        """Whether what is inserted can be read: others are computed from an EPHEMERAL column by each insert."""
        return self.insertable and self.default_kind != "EPHEMERAL"


@dataclass(frozen=True, slots=True)
class Years:
    """First and last year that the server holds in Date32 and in DateTime64. Beyond them it shows other values.

    Year 0 is 1 BC. Engine 26.9 holds 0 to 9999 in both, servers before 1900 to 2299, some of them in Date32 only.
    """

    date: tuple[int, int] = (0, 9999)
    time: tuple[int, int] = (0, 9999)


WIDE_YEARS = Years()
