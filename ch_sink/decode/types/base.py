"""What a converter is: the way of one column from the wire's literals to the Arrow array that is inserted."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Converted", "Converter", "Encoding"]

Encoding = Literal["json", "avro"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A column's values, and what was special about them."""

    array: pa.Array
    unavailable: npt.NDArray[np.bool_] | None = None
    """Where the unavailable-value placeholder stood (null in ``array``); None where it stood nowhere."""
    clamped: int = 0
    """How many values ``out_of_range: clamp | null`` changed."""


class Converter(Protocol):
    """Turns the literals of one column into Arrow."""

    @property
    def wire(self) -> Any:
        """msgspec annotation of the literal without null, as strict as the type allows."""
        ...

    @property
    def arrow(self) -> pa.DataType:
        """What is inserted into the column with FORMAT Arrow."""
        ...

    def convert(self, values: list[Any]) -> Converted:
        """Literals (None for null) to an array of :attr:`arrow`.

        Raises DecodeError where a value cannot be read or does not fit the column; the text names neither
        column nor record, which the caller knows.
        """
        ...
