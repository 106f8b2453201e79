"""Row values that the delete half of a key change hands over to its create half."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId

__all__ = ["HandedOver", "Handover"]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Row values that the delete halves of key changes handed over, for the ids asked for."""

    found: dict[HandoverId, int]
    """Id → row of ``rows``; -1 if the delete half was seen but its row was found nowhere."""
    rows: pa.Table
    """Source columns of the target, Arrow types as inserted."""


class Handover(Protocol):
    """Values of rows that change their key, handed from the delete half to the create half; the first entry stays."""

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        """The entries stored for these ids; one query per call."""
        ...

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        """Store entries, one per id: ``rows`` has a row for each (nulls where ``known`` is False)."""
        ...
