"""A backfill and how far it has come: where the snapshot ends, its waves, and what was read of each partition."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ch_sink.model.change import Op
from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange
from ch_sink.stream.bulk import Piece
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.subject import Subject

__all__ = ["BackfillPlan", "Progress", "Ranges", "learned", "next_wave", "snapshot_ends"]

_PROBE = 200
"""Offsets in which one event is looked for."""
_NOTE = "backfill"
Ranges = list[tuple[int, int, int]]
"""Partition, first offset, end."""


@dataclass(slots=True)
class Progress:
    """What was read of one partition."""

    at: int
    state: str
    rows: int = 0
    dead_letters: int = 0
    top: int = 0
    source_time: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, piece: Piece, end: int, began: str) -> None:
        """The range up to this offset was read. ``began``: the state in which its wave began."""
        # A range without events says nothing of the ranges of its wave before it.
        state = piece.state.to_json()
        self.at, self.state = end, self.state if state == began else state
        self.rows += piece.rows
        self.dead_letters += piece.dead_letters
        self.top, self.source_time = max(self.top, piece.top), max(self.source_time, piece.source_time)
        self.counts = dict(Counter(self.counts) + piece.counts)


@dataclass(slots=True)
class BackfillPlan:
    """Goes into the comment of the new table as JSON."""

    id: str
    topic_id: str
    fingerprint: str
    epoch: int
    low: dict[int, int]
    ends: dict[int, int]
    split: bool
    """Whether ranges of one partition are read at the same time."""
    began: float
    """Seconds since 1970."""
    drops: bool = False
    """Whether the table drops a record that was sent twice: it is known by the position before it, so a range of which
    nothing is known yet cannot begin there."""
    wave: int = 0
    blocks: int = 0
    ranges: Ranges = field(default_factory=list)
    """Those of the wave that runs."""
    read: dict[int, Progress] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Begins the tokens of its blocks, and is in the comment."""
        return f"{_NOTE}-{self.id}"

    @property
    def total(self) -> int:
        """Offsets of the snapshot."""
        return sum(end - self.low[p] for p, end in self.ends.items())

    @property
    def done(self) -> int:
        """Offsets that were read."""
        return sum(one.at - self.low[p] for p, one in self.read.items())

    def noted(self) -> dict[str, Any]:
        """For the comment."""
        return {_NOTE: {"label": self.label, **asdict(self)}}

    @staticmethod
    def of(noted: Mapping[str, Any]) -> "BackfillPlan | None":
        """Inverse of `noted`; None if it is of another kind of run."""
        if _NOTE not in noted:
            return None
        known = {name: value for name, value in noted[_NOTE].items() if name != "label"}
        known["low"], known["ends"] = ({int(p): int(n) for p, n in known[name].items()} for name in ("low", "ends"))
        known["ranges"] = [(p, first, end) for p, first, end in known["ranges"]]
        known["read"] = {int(p): Progress(**one) for p, one in known["read"].items()}
        return BackfillPlan(**known)

    def results(self, topic: TopicState, now: float) -> list[FinishedRange]:
        """What the ledger has to know of partitions that were read to their snapshot's end."""
        return [
            FinishedRange(
                topic.topic, self.topic_id, p, self.low[p], one.at, one.rows, 0, one.dead_letters, one.counts,
                state=one.state, started=self.began, finished=now, source_time=one.source_time, top=one.top,
            )
            for p, one in sorted(self.read.items())
        ]  # fmt: skip


def next_wave(plan: BackfillPlan, size: int, slots: int, unit: int) -> Ranges:
    """The ranges of the next wave: about so many offsets of all partitions, cut at multiples of ``unit``."""
    left = {p: (plan.read[p].at, end) for p, end in plan.ends.items() if plan.read[p].at < end}
    offsets = sum(end - at for at, end in left.values())
    found: Ranges = []
    for p, (at, end) in sorted(left.items()):
        share = max(1, round(size * (end - at) / offsets))
        unknown = plan.drops and not plan.read[p].top
        stop = min(end, _aligned(at + (1 if unknown and not plan.wave else share), unit))
        step = max(1, -(-(stop - at) // slots)) if plan.split and not unknown else stop - at
        while at < stop:
            until = min(stop, _aligned(at + step, unit))
            found.append((p, at, until))
            at = until
    return found


def _aligned(offset: int, unit: int) -> int:
    return -(-offset // unit) * unit


def snapshot_ends(subject: Subject, topic: TopicState) -> dict[int, int]:
    """Partition → the offset at which its snapshot ends, as far as single events tell. Raises ChSinkError."""
    return {p: _end(subject, topic, p, low, topic.high[p]) for p, low in topic.low.items()}


def _end(subject: Subject, topic: TopicState, partition: int, low: int, high: int) -> int:
    last = _event(subject, topic, partition, max(low, high - _PROBE), high) if low < high else None
    if last is not None and last[0]:
        return high  # most of a topic without changes; reading it proves it
    while low < high:
        middle = (low + high) // 2
        found = _event(subject, topic, partition, middle, high)
        if found is None:
            high = middle
        elif found[0]:
            low = found[1] + 1
        else:
            high = middle
    return low


def learned(subject: Subject, topic: TopicState, partition: int, state: State) -> State:
    """The state that knows how the partition's first records are read, as every range has to know it."""
    low, high = topic.low[partition], topic.high[partition]
    task = RangeTask(
        "backfill", topic.topic, topic.topic_id, partition, subject.table, low, min(low + _PROBE, high), State()
    )
    history, decoder = subject.topic.history(partition), subject.decoder(subject.table, False)
    for chunk in subject.topic.chunks(task, low) if high > low else ():
        if len(chunk.records):
            state = replace(state, profile=decoder.learn(chunk.records, state.profile, history))
    return state


def _event(subject: Subject, topic: TopicState, partition: int, first: int, high: int) -> tuple[bool, int] | None:
    """Whether the first event from an offset on is a snapshot row, and its offset; None if there is none below."""
    decoder = subject.decoder(subject.table, False)
    for at in range(first, high, _PROBE):
        task = RangeTask(
            "backfill", topic.topic, topic.topic_id, partition, subject.table, at, min(at + _PROBE, high), State()
        )
        for chunk in subject.topic.chunks(task, at):
            if not len(chunk.records):
                continue
            profile = decoder.learn(chunk.records, None, subject.topic.history(partition))
            batch = decoder.decode(chunk.records, profile)
            if len(batch):
                return bool(batch.op[0] == Op.READ), int(batch.offset[0])
    return None
