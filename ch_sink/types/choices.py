"""What the user and the server decide about the types of generated columns."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["JsonType", "TypeChoices"]

JsonType = Literal["String", "JSON"]


@dataclass(frozen=True, slots=True)
class TypeChoices:
    """Choices among column types that all hold the source's values."""

    low_cardinality: bool = True
    """``LowCardinality`` for labels (ENUM, SET)."""
    arrays: Literal["nullable", "empty_for_null"] = "nullable"
    """Columns for arrays and maps that can be null: a ``Nullable(Tuple(items …))``, or the bare type, which stores null
    as empty."""
    json_type: JsonType = "String"
    """Columns for the source's JSON."""
    json_columns: tuple[tuple[str, JsonType], ...] = ()
    """Columns whose type differs from ``json_type``."""
    document_type: JsonType = "String"
    """The column that holds whole documents of MongoDB."""
    nullable_tuple: bool = True
    """Whether the server has ``Nullable(Tuple(…))``, which keeps null arrays and empty ones apart. Without it they
    become JSON text."""

    def json_of(self, column: str) -> JsonType:
        """The type of a column for JSON."""
        return dict(self.json_columns).get(column, self.json_type)
