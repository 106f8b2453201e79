"""What travels between driver and tasks: an offset range with its state, and what became of it. All of it is JSON."""

from collections import Counter
from dataclasses import astuple
from typing import Any

import msgspec

from ch_sink.model.change import UnknownColumn
from ch_sink.order import BackwardStep
from ch_sink.pipeline.plan import Barrier
from ch_sink.pipeline.timings import STAGES

__all__ = ["Failure", "RangeResult", "RangeTask", "decode_result", "decode_task", "encode"]


class RangeTask(msgspec.Struct, frozen=True):
    """One task's work: the offsets [start, end) of a topic-partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    state: str
    """Ordering state as of ``start`` (JSON of `State`)."""
    attempt: int = 0
    replay: str = ""
    cuts: list[int] = []
    """Offsets inside the range at which an earlier attempt ended a chunk for want of columns."""


class Failure(msgspec.Struct, frozen=True):
    """An error on its way to the driver."""

    kind: str
    """Class name of ch_sink.errors, or of the unexpected exception."""
    text: str
    hint: str | None = None
    trace: str = ""


class RangeResult(msgspec.Struct):
    """What became of a range: all offsets below ``end`` are done."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    state: str
    rows: int = 0
    records: int = 0
    dead_letters: int = 0
    waiting: int = 0
    last_source_ts: int = 0
    counts: dict[str, int] = {}
    steps: list[dict[str, Any]] = []
    cuts: list[int] = []
    seconds: dict[str, float] = {}
    barrier: dict[str, Any] | None = None
    failure: Failure | None = None

    def add_counts(self, counts: Counter[str]) -> None:
        for name, n in counts.items():
            self.counts[name] = self.counts.get(name, 0) + n

    def all_counts(self) -> dict[str, int]:
        """The counts of changes, and the stages' times in milliseconds."""
        return {**self.counts, **{f"{name}_ms": round(s * 1000) for name, s in self.seconds.items() if name in STAGES}}

    def set_barrier(self, barrier: Barrier | None) -> None:
        if barrier is not None:
            self.barrier = {
                "kind": barrier.kind,
                "next_offset": barrier.next_offset,
                "version": str(barrier.version),
                "floor": [str(part) for part in barrier.floor],
                "columns": [list(astuple(c)) for c in barrier.columns],
                "key": list(barrier.key),
            }

    def get_barrier(self) -> Barrier | None:
        found = self.barrier
        if found is None:
            return None
        epoch, commit, inner = (int(part) for part in found["floor"])
        return Barrier(
            found["kind"],
            found["next_offset"],
            columns=tuple(UnknownColumn(*c) for c in found["columns"]),
            key=tuple(found["key"]),
            version=int(found["version"]),
            floor=(epoch, commit, inner),
        )

    def add_steps(self, steps: list[BackwardStep]) -> None:
        self.steps.extend(
            {"kind": s.kind, "source": s.source, "offset": s.offset, "commit": str(s.commit), "highest": str(s.highest)}
            for s in steps
        )


def encode(thing: RangeTask | RangeResult) -> str:
    """JSON text."""
    return msgspec.json.encode(thing).decode()


def decode_task(text: str) -> RangeTask:
    """Inverse of `encode`."""
    return msgspec.json.decode(text, type=RangeTask)


def decode_result(text: str) -> RangeResult:
    """Inverse of `encode`."""
    return msgspec.json.decode(text, type=RangeResult)
