"""The section ``rollups``: sums, counts and averages that the stream keeps beside its table."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from ch_sink.config.sections import Name, Section
from ch_sink.table.rollup import RollupChoice

_NO_DIFFERENCE = ("min", "max", "uniq", "median", "any", "quantile")


class RollupSection(Section):
    """One rollup; its key is the name of its table. Expressions are ClickHouse SQL over the table's columns."""

    by: dict[Name, Name] = Field(min_length=1)
    """Column → expression: a group for each value."""
    sum: dict[Name, Name] = Field(default_factory=dict)
    """Column → expression of an integer or Decimal type, summed up in the widest type of its kind."""
    count: Name | None = None
    """Column that counts the rows of a group."""
    avg: dict[Name, Name] = Field(default_factory=dict)
    """Column → expression; the sum of its values that are not null by their number."""
    where: str = ""
    """Only rows that meet this condition are summed up."""
    allow_float: bool = False
    """Sum floating-point numbers, which do not cancel exactly."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (found := [name for name in _NO_DIFFERENCE if name in given]):
            raise ValueError(
                f"has {found[0]}, which cannot be undone: once a row is deleted, nothing shows what "
                f"{found[0]} was without it; leave it out, and ask the table's view for it"
            )
        return given

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [*self.by, *self.sum, *self.avg, *([self.count] if self.count else [])]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"has two columns {twice[0]!r}; give each its own name")
        if own := [name for name in names if name.startswith("_")]:
            raise ValueError(f"has a column {own[0]!r}; names that begin with _ are reserved")
        if not (self.sum or self.avg or self.count):
            raise ValueError("computes nothing; give it sum, count or avg")
        return self

    def choice(self, name: str) -> RollupChoice:
        """The rollup of this name."""
        by, sums, avgs = (tuple(found.items()) for found in (self.by, self.sum, self.avg))
        return RollupChoice(name, by, sums, avgs, self.count or "", self.where, self.allow_float)
