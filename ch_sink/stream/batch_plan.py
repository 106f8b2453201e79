"""The plan of a stream's next batch: offset ranges. The ledger decides; the topic's watermarks say how far.

1. What was begun and not finished is run again as it was: the same end, and chunks cut by the same limits, whatever the
   settings say by now. So every attempt has the same chunks, and their inserts the same tokens.
2. Else the batch goes on from where the partitions' last results end, up to the watermarks and the limit.
3. A partition that the ledger does not know begins where ``start`` says, or, if the stream has read other partitions of
   the topic, at its earliest offset.

Where reading begins, and where it goes on after offsets were lost, is recorded as an empty result before anything is
read there.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ch_sink.errors import REFILL, DataLoss
from ch_sink.model.counts import Counts
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, Ledger, RangeIntent
from ch_sink.stream.pace import shared
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamSettings

log = logging.getLogger("ch_sink")

LOST = (
    f"Retention removed records before they were read. {REFILL}, or set on_data_loss: continue to read on with what "
    "the topic still holds."
)
"""The next step of a stream that misses records."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of a topic-partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    lost: int
    """Offsets before ``start`` that were dropped before they were read (``on_data_loss: continue``), usually 0."""
    high: int
    """The partition's high watermark when the range was planned."""
    chunk_offsets: int = 0
    """Chunk limits of an earlier attempt at this range; 0: those of the settings."""
    chunk_bytes: int = 0


@dataclass(slots=True)
class BatchPlanner:
    """Plans the batches of one stream."""

    ledger: Ledger
    settings: StreamSettings
    committed: Callable[[Sequence[int]], Mapping[int, int]]
    """The known offsets that the stream's consumer group has committed for these partitions."""
    _topic_id: str = ""
    _reached: dict[int, int] | None = None
    """Partition → next offset; None if the ledger has to be read."""
    _begun: dict[int, RangeIntent] = field(default_factory=dict)
    _lost: dict[int, int] = field(default_factory=dict)
    """Partition → offsets skipped since its last range."""
    _lag: dict[int, int] = field(default_factory=dict)

    def expect_topic(self, state: TopicState) -> None:
        """Raises DataLoss if the topic was recreated since the stream last read it."""
        if state.topic_id != self._topic_id:
            expect_same_topic(self.ledger, state)
            self._topic_id, self._reached = state.topic_id, None

    def plan(
        self,
        state: TopicState,
        states: States,
        limit: int | None,
        ceiling: Mapping[int, int] | None,
        held: Collection[int] = (),
    ) -> list[OffsetRange]:
        """The ranges of the next batch, none if there is nothing to read.

        Args:
            limit: how many offsets the batch may hold; what was begun is run again whole.
            ceiling: offsets beyond which nothing new is read, by partition; partitions without one wait. Nothing at all
                is read beyond them if others cut the batch (`TopicState.whole`).
            held: partitions that wait.

        Raises:
            DataLoss: records are gone that the stream has not read.
        """
        reached = self.positions(state, states)
        self._lag = {p: max(0, high - reached[p]) for p, high in state.high.items()}
        cut = {} if state.whole else {p: (ceiling or {}).get(p, 0) for p in self._begun}
        begun = [(p, intent) for p, intent in sorted(self._begun.items()) if p not in held]
        again = [self._again(i, state, reached[p], cut.get(p, i.end)) for p, i in begun if i.start <= reached[p]]
        left = [r for r in again if r.start < r.end]
        if left:
            for r in left:
                self._lost.pop(r.partition, None)
            return left
        states.rise_above_table()
        known = [p for p in reached if (ceiling is None or p in ceiling) and p not in held]
        high = {p: state.high[p] if ceiling is None else min(ceiling[p], state.high[p]) for p in known}
        ends = plan_ranges(
            reached, {p: max(reached[p], end) for p, end in high.items()}, limit, self.settings.chunk_offsets
        )
        return [
            OffsetRange(state.topic, state.topic_id, p, reached[p], end, self._lost.pop(p, 0), state.high[p])
            for p, end in sorted(ends.items())
            if reached[p] < end
        ]

    def lag(self, but: Mapping[int, int]) -> int:
        """Offsets that the plan left to later batches, in partitions other than these."""
        return sum(n for partition, n in self._lag.items() if partition not in but)

    def begin(self) -> dict[int, int] | None:
        """A batch begins: until it has ended well, only the ledger knows how far the stream is."""
        reached, self._reached = self._reached, None
        return reached

    def finish(self, before: Mapping[int, int] | None, reached: Mapping[int, int]) -> None:
        """The batch has ended well. ``before``: what `begin` returned."""
        if before is not None:
            self._reached = {**before, **reached}
            self._begun = {p: intent for p, intent in self._begun.items() if p not in reached}
        self._lag = {}

    def positions(self, state: TopicState, states: States) -> dict[int, int]:
        """Partition → next offset, for every partition of the topic."""
        asks = self._reached is None
        if self._reached is None:
            self._reached = self.ledger.progress(state.topic_id)
            self._begun = {intent.partition: intent for intent in self.ledger.open_intents(state.topic_id)}
        reached = self._reached
        if missing := sorted(reached.keys() - state.low.keys()):
            raise DataLoss(
                f"topic {state.topic} no longer has partition {missing[0]}",
                hint="Kafka topics never lose partitions: check that this is the cluster that the stream has read.",
            )
        begun = {
            p: intent.end for p, intent in self._begun.items() if state.whole and intent.start <= reached.get(p, -1)
        }
        try:
            expect_end(state, {p: max(offset, begun.get(p, 0)) for p, offset in reached.items()})
        except DataLoss:
            self.ledger.check_claim()  # a job that was frozen compares an old answer with its successor's ledger
            raise
        moved: dict[int, tuple[int, State, int]] = {}
        unknown = self._unknown(state, reached)
        if asks:
            states.look_up({**unknown, **reached})
        for p, low in unknown.items():
            moved[p] = (low, states.at(p, low), 0)
        for p, offset in reached.items():
            start = self._held(state, p, offset)
            if start != offset:
                moved[p] = (start, states.at(p, offset), start - offset)
                text = "topic %s partition %d: offsets %d to %d were lost; reading continues at %d"
                log.warning(text, state.topic, p, offset, start - 1, start)
        if moved:
            self._record(state, moved)
        for p, (offset, known, lost) in moved.items():
            reached[p] = offset
            states.put(p, offset, known)
            self._lost[p] = self._lost.get(p, 0) + lost
        return reached

    def _unknown(self, state: TopicState, reached: Mapping[int, int]) -> dict[int, int]:
        """The places where partitions begin that are new to the ledger."""
        if reached.keys() >= state.low.keys():
            return {}
        if reached or self.ledger.topic_ids() or self.settings.start != "latest":
            return {p: low for p, low in sorted(state.low.items()) if p not in reached}
        found: dict[int, int] = {}
        if committed := self.committed(sorted(state.low)):
            # The stream has been here before, and its ledger is lost: what came since would be skipped.
            found = {p: min(max(offset, state.low[p]), state.high[p]) for p, offset in committed.items()}
            log.warning(
                "topic %s: the ledger knows nothing of it, but the consumer group has committed offsets; "
                "reading continues from those instead of the latest: %s",
                *(state.topic, found),
            )
        return {p: found.get(p, high) for p, high in sorted(state.high.items())}

    def _held(self, state: TopicState, partition: int, start: int) -> int:
        """The offset at which reading can continue. Raises DataLoss if records were lost, and that is not allowed."""
        low = state.low[partition]
        if start < low and self.settings.on_data_loss == "fail":
            raise DataLoss(
                f"topic {state.topic} partition {partition}: offset {start} is the next to be read, "
                f"but the topic holds {low} to {state.high[partition] - 1}",
                hint=LOST,
            )
        return max(start, low)

    def _record(self, state: TopicState, moved: Mapping[int, tuple[int, State, int]]) -> None:
        self.ledger.results(
            [
                _begins(state, partition, offset, known.to_json(), Counts(kinds=+Counter(lost=lost)))
                for partition, (offset, known, lost) in sorted(moved.items())
            ]
        )

    def _again(self, intent: RangeIntent, state: TopicState, start: int, most: int) -> OffsetRange:
        """The range of an intent from where it continues."""
        p = intent.partition
        end = min(intent.end, most)
        lost, high = self._lost.get(p, 0), state.high[p]
        return OffsetRange(
            state.topic, state.topic_id, p, start, end, lost, high, intent.chunk_offsets, intent.chunk_bytes
        )


def other_topic(ledger: Ledger, topic_id: str) -> str:
    """The id of the topic that the stream has read last, if that is another one; else empty."""
    return next((last for last in ledger.topic_ids()[:1] if last != topic_id), "")


def expect_same_topic(ledger: Ledger, topic: TopicState) -> None:
    """Raises DataLoss if the topic was recreated since the stream last read it: it may lack changes of the former one.

    A snapshot in the new topic does not say which rows were deleted meanwhile.
    """
    if other := other_topic(ledger, topic.topic_id):
        raise DataLoss(
            f"topic {topic.topic} was recreated: its id is {topic.topic_id}, the ledger's is {other}",
            hint="Fill the table again: `ch_sink resync CONFIG --apply`. Without a section source, the connector must "
            "take a snapshot into the new topic first.",
        )


def expect_end(topic: TopicState, reached: Mapping[int, int]) -> None:
    """Raises DataLoss if the topic ends below offsets that were read: the broker gives them to other records.

    Tokens, dead letters and results are of offsets, so that two records of one offset could not be told apart.
    """
    for partition, offset in sorted(reached.items()):
        if offset > (high := topic.high.get(partition, offset)):
            raise DataLoss(
                f"topic {topic.topic} partition {partition}: offsets up to {offset - 1} were read, but the topic ends "
                f"with {high - 1}: it has lost its end, and gives these offsets to other records",
                hint="If its brokers are starting, look again with `ch_sink resume` once they are up. Else do not "
                "continue with this topic: create it again, so that it has another id, let the connector take a "
                "snapshot, and fill the table again: `ch_sink resync CONFIG --apply`.",
            )


def expect_end_still(topic: TopicState, reached: Mapping[int, int], ask: Callable[[], TopicState]) -> None:
    """Raises DataLoss likewise. ``ask``: the topic may have grown since it was asked, and the stream have read that."""
    try:
        expect_end(topic, reached)
    except DataLoss:
        if (now := ask()).topic_id == topic.topic_id:
            expect_end(now, reached)


def rewind(ledger: Ledger, topic: TopicState) -> None:
    """Record that the stream goes on at the earliest offsets, in the state that it once had there.

    The ledger must be claimed. The next batches then have the versions of the first time.
    """
    states = ledger.states_at(topic.topic_id, topic.low)
    ledger.results(
        [_begins(topic, p, low, states.get(p) or State().to_json(), Counts()) for p, low in sorted(topic.low.items())]
    )


def _begins(topic: TopicState, partition: int, offset: int, state: str, counts: Counts) -> FinishedRange:
    """An empty result: reading goes on at this offset."""
    now = time.time()
    return FinishedRange(topic.topic, topic.topic_id, partition, offset, offset, counts, state, now, now)


def plan_ranges(
    start: Mapping[int, int], latest: Mapping[int, int], max_offsets: int | None, chunk_offsets: int = 50_000
) -> dict[int, int]:
    """The end of each partition's next range, so that all ranges together hold at most ``max_offsets`` offsets.

    The limit is shared equally; what a partition does not need is left to the others. An end below the latest offset is
    moved back to a multiple of ``chunk_offsets`` unless the range would then be empty. Every partition of ``latest``
    has an end in the result, equal to its start if it gets nothing. ``start`` must cover ``latest``.
    """
    lag = {partition: max(0, latest[partition] - start[partition]) for partition in latest}
    shares = shared(lag, sum(lag.values()) if max_offsets is None else max(1, max_offsets))
    ends = {}
    for partition, share in shares.items():
        end = start[partition] + share
        cut = end // chunk_offsets * chunk_offsets if chunk_offsets > 0 else end
        ends[partition] = cut if end < latest[partition] and cut > start[partition] else end
    return ends
