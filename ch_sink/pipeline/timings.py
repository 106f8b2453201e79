"""Measures how the time of a range is spent, by stage."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import TopicProfile
from ch_sink.pipeline.inputs import BatchDecoder, Ports
from ch_sink.ports import History, RowLookup, StoredRows

__all__ = ["STAGES", "Stages"]

log = logging.getLogger("ch_sink")
SLOW = 10.0
"""Seconds of decoding one chunk that the log tells of: a chunk takes less than one, and no record two."""
STAGES = ("consume", "decode", "merge", "lookup", "insert")
"""consume: waiting for records. merge: ordering, resolution and grouping. lookup: waiting for stored rows, and for the
inserts before them. The stages of different chunks overlap, so their sum may exceed the range's time."""


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

    def decoder(self, decoder: BatchDecoder) -> BatchDecoder:
        """The decoder, its time counted."""
        return _Decoder(decoder, self)

    def ports(self, ports: Ports) -> Ports:
        """The ports, the lookup's time counted."""
        return ports if ports.lookup is None else replace(ports, lookup=_Lookup(ports.lookup, self))


@dataclass(frozen=True, slots=True)
class _Decoder:
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


@dataclass(frozen=True, slots=True)
class _Lookup:
    inner: RowLookup
    stages: Stages

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        with self.stages.stage("lookup"):
            return self.inner.fetch(keys, below)
