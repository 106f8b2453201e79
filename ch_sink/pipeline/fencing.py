"""The execution of a task: begun when the task first needs it, and the fence of all inserts from then on.

Tables without versions, or with times as versions, and those whose rows are reconciled, need it from the start. In a
table with other versions an insert is the same whoever sends it, unless a question to ClickHouse went before.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId
from ch_sink.ports import Fence, HandedOver, Handover, RowLookup, StoredRows

__all__ = ["Fencing"]


class Fencing:
    """Begins one execution, once, whichever thread asks first."""

    def __init__(self, begin: Callable[[], Fence]) -> None:
        """``begin`` registers the execution and returns once no insert of an earlier one runs. Raises ChSinkError."""
        self._begin = begin
        self._lock = threading.Lock()
        self.fence: Fence | None = None
        """None until the execution has begun."""

    def begin(self) -> Fence:
        """The fence; begins the execution on the first call."""
        with self._lock:
            if self.fence is None:
                self.fence = self._begin()
            return self.fence

    def lookup(self, inner: RowLookup) -> RowLookup:
        """The lookup; the execution begins before the first question, so that no older insert changes the answer."""
        return _Lookup(inner, self)

    def handover(self, inner: Handover) -> Handover:
        """The hand-over; the execution begins before the first question: the answer decides which changes wait."""
        return _Handover(inner, self)


@dataclass(frozen=True, slots=True)
class _Lookup:
    inner: RowLookup
    fencing: Fencing

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        self.fencing.begin()
        return self.inner.fetch(keys, below)


@dataclass(frozen=True, slots=True)
class _Handover:
    inner: Handover
    fencing: Fencing

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        self.fencing.begin()
        return self.inner.get(ids)

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        self.inner.put(ids, rows, known, token)
