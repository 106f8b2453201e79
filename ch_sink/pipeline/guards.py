"""Guards between planning and the ports: earlier inserts, the task's execution, and clocks.

Planning overlaps with the insert of the chunk before, so a question about stored rows waits for that. It depends on
what earlier executions of the task have stored, so the execution begins before the first one. Tables without versions,
or with times as versions, and those whose rows are reconciled, need the execution from the start; in a table with other
versions an insert is the same whoever sends it, unless such a question went before.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.key_layouts import KeyForm
from ch_sink.model.change import ChangeBatch, HandoverId, Records
from ch_sink.model.policy import TopicProfile
from ch_sink.order import State
from ch_sink.pipeline.plans import BatchDecoder, Failed, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import Fence, HandedOver, Handover, History, RowLookup, StoredRows

log = logging.getLogger("ch_sink")

SLOW = 10.0
"""Seconds of decoding one chunk that the log tells of: a chunk takes less than one, and no record two."""
STAGES = ("consume", "decode", "merge", "lookup", "insert")
"""consume: waiting for records. merge: ordering, resolution and grouping. lookup: waiting for what is stored, and for
the inserts before it. The stages of different chunks overlap, so their sum may exceed the range's time."""

T = TypeVar("T")
Around = Callable[[], AbstractContextManager[None]]


def _guarded(ports: Ports, around: Around) -> Ports:
    """The ports; each question about what is stored is asked inside of ``around()``."""
    return replace(
        ports,
        lookup=None if ports.lookup is None else _Lookup(ports.lookup, around),
        handover=None if ports.handover is None else _Handover(ports.handover, around),
        failed=None if ports.failed is None else _Failed(ports.failed, around),
    )


@dataclass(frozen=True, slots=True)
class _Lookup:
    inner: RowLookup
    around: Around

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        with self.around():
            return self.inner.fetch(keys, below)


@dataclass(frozen=True, slots=True)
class _Failed:
    inner: Failed
    around: Around

    def __call__(self, first: int, end: int) -> Collection[int]:
        with self.around():
            return self.inner(first, end)


@dataclass(frozen=True, slots=True)
class _Handover:
    inner: Handover
    around: Around

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        with self.around():
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


class InFlight(Generic[T]):
    """At most one chunk is being inserted while the next is planned."""

    def __init__(self, inserter: ThreadPoolExecutor) -> None:
        self._inserter = inserter
        self._running: Future[T] | None = None

    def submit(self, work: Callable[..., T], *args: object) -> None:
        self._running = self._inserter.submit(work, *args)

    @contextmanager
    def _settled(self) -> Iterator[None]:
        if self._running is not None:
            self._running.result()
        yield

    def ports(self, ports: Ports) -> Ports:
        """The ports; each question waits until the submitted work is done, and raises what that raised."""
        return _guarded(ports, self._settled)

    def finish(self) -> Iterator[T]:
        if self._running is not None:
            done = self._running.result()
            self._running = None
            yield done


class Fencing:
    """Begins one execution of a task, once, whichever thread asks first."""

    def __init__(self, begin: Callable[[], Fence]) -> None:
        """``begin`` registers the execution and returns once no insert of an earlier one runs. Raises ChSinkError."""
        self._begin = begin
        self._lock = threading.Lock()
        self.fence: Fence | None = None
        """None until the execution has begun: the fence of all inserts from then on."""

    def begin(self) -> Fence:
        """The fence; begins the execution on the first call."""
        with self._lock:
            if self.fence is None:
                self.fence = self._begin()
            return self.fence

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self.begin()
        yield

    def ports(self, ports: Ports) -> Ports:
        """The ports; the execution begins before the first question, so that no older insert changes the answer."""
        return _guarded(ports, self._begun)


class Stages:
    """Seconds by stage. A nested stage's time counts for that stage only; each thread nests separately."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time spent inside for this stage."""
        outer: list[float] | None = getattr(self._thread, "inner", None)
        inner = self._thread.inner = [0.0]
        began = self.clock()
        try:
            yield
        finally:
            spent = self.clock() - began
            self._thread.inner = outer
            if outer is not None:
                outer[0] += spent
            with self._lock:
                self.seconds[name] += spent - inner[0]

    def ports(self, ports: Ports) -> Ports:
        """The ports, the time of their answers counted."""
        return _guarded(ports, lambda: self.stage("lookup"))


class Decoders:
    """The decoders of one task, each created when it is first used, and what they have to know of the topic."""

    def __init__(self, make: Callable[[bool], BatchDecoder], target: Target, stages: Stages) -> None:
        """``make``: creates a decoder; its argument states whether before images are needed."""
        self._make, self._target, self._stages = make, target, stages
        self._made: dict[bool, BatchDecoder] = {}

    def prepared(self, records: Records, state: State, ports: Ports) -> tuple[BatchDecoder, State]:
        """The decoder for these records, and the state with the profile for decoding them."""
        profile = self._decoder(before=False).learn(records, state.profile, ports.history)
        decoder = self._decoder(before=self._target.wants_before(profile.key_columns))
        return decoder, replace(state, profile=profile)

    def _decoder(self, *, before: bool) -> BatchDecoder:
        if before not in self._made:
            self._made[before] = _TimedDecoder(self._make(before), self._stages)
        return self._made[before]


@dataclass(frozen=True, slots=True)
class _TimedDecoder:
    inner: BatchDecoder
    stages: Stages

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        with self.stages.stage("decode"):
            return self.inner.learn(records, profile, history)

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        # The thread's own time: a machine that is busy with other things is none of the records' doing.
        began = time.thread_time()
        with self.stages.stage("decode"):
            batch = self.inner.decode(records, profile, waited=waited)
        spent = time.thread_time() - began
        if spent > SLOW:
            log.warning(
                "decoding the %d records of %s, partition %d, from offset %d on took %.0f s: one of them costs more "
                "than a record should",
                len(records),
                records.topic,
                records.partition,
                records.offsets[0],
                spent,
            )
        return batch

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        return self.inner.key_values(keys, profile)

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        return self.inner.key_forms(keys)
