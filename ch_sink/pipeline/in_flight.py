"""Planning one chunk while the previous one is being inserted, with ports that wait for those inserts."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId
from ch_sink.pipeline.inputs import Failed, Ports
from ch_sink.ports import HandedOver, Handover, RowLookup, StoredRows

__all__ = ["InFlight", "MissingAsUnknown", "settled"]

T = TypeVar("T")


class InFlight(Generic[T]):
    """At most one chunk is being inserted while the next is planned."""

    def __init__(self, inserter: ThreadPoolExecutor) -> None:
        self._inserter = inserter
        self._running: Future[T] | None = None

    def submit(self, work: Callable[..., T], *args: object) -> None:
        self._running = self._inserter.submit(work, *args)

    def settle(self) -> None:
        """Wait until the submitted work is done; raises what it raised."""
        if self._running is not None:
            self._running.result()

    def finish(self) -> Iterator[T]:
        if self._running is not None:
            done = self._running.result()
            self._running = None
            yield done


def settled(ports: Ports, in_flight: InFlight[Any]) -> Ports:
    """The same ports; each read waits until every earlier insert is stored."""
    return replace(
        ports,
        lookup=None if ports.lookup is None else _SettledLookup(ports.lookup, in_flight),
        handover=None if ports.handover is None else _SettledHandover(ports.handover, in_flight),
        failed=None if ports.failed is None else _SettledFailed(ports.failed, in_flight),
    )


@dataclass(frozen=True, slots=True)
class _SettledLookup:
    inner: RowLookup
    in_flight: InFlight[Any]

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        self.in_flight.settle()
        return self.inner.fetch(keys, below)


@dataclass(frozen=True, slots=True)
class _SettledFailed:
    inner: Failed
    in_flight: InFlight[Any]

    def __call__(self, first: int, end: int) -> Collection[int]:
        self.in_flight.settle()
        return self.inner(first, end)


@dataclass(frozen=True, slots=True)
class _SettledHandover:
    inner: Handover
    in_flight: InFlight[Any]

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        self.in_flight.settle()
        return self.inner.get(ids)

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        self.inner.put(ids, rows, known, token)


@dataclass(frozen=True, slots=True)
class MissingAsUnknown:
    """Stops waiting for hand-overs that have not arrived: their rows count as unknown."""

    inner: Handover

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        found = self.inner.get(ids)
        return HandedOver({**dict.fromkeys(ids, -1), **found.found}, found.rows)

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        self.inner.put(ids, rows, known, token)
