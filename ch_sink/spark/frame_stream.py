"""One stream whose records come in the batches of a DataFrame, which somebody else has cut. No Spark in here.

The ledger decides what of a batch is new. What lies below the ledger's offsets has been applied before (a batch that
runs again, a lost checkpoint, other splits), and is skipped. A batch whose first record from there on is above it lacks
records.

A range that was begun and not finished is run again up to the end of the batch, which may be less than it was, or not
at all; its fingerprint in the ledger says where it ended, so that rows of another cut are looked up before they are
stored (`StreamSettings.ends_vary`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ch_sink.errors import ConfigError, DataLoss, StreamFailed
from ch_sink.model.values import TopicState
from ch_sink.ports import TableRefilled
from ch_sink.stream.batch_plan import other_topic
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import NoGroup, StreamPorts, StreamSettings
from ch_sink.stream.tasks import Execute
from ch_sink.table.model import TargetTable


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets [first, end) of a partition in a batch; ``rows``: how many rows the batch has of them."""

    first: int
    end: int
    rows: int
    repeated: int = 0
    """How many of the rows have the offset of another one."""
    part: Callable[[int], "Span | None"] = field(default=lambda _: None, compare=False)
    """Asks the batch for what it has from an offset within the span on."""

    @property
    def gaps(self) -> int:
        """How many of the offsets the batch lacks."""
        return self.end - self.first - self.rows + self.repeated

    def above(self, offset: int) -> "Span":
        """The records of the batch from an offset on."""
        if not self.first < offset < self.end:
            return self
        return (self.part(offset) if self.gaps else None) or Span(offset, self.end, self.end - offset)


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about the topic besides its records."""

    topic_id: str
    high: Mapping[int, int] | None = None
    """Watermarks of all partitions, read after the batch was cut.

    None if no broker is known: then the topic may have more records, and more partitions, than a batch shows.
    """
    holds: Callable[[int, int, int], bool] = lambda _partition, _first, _end: True
    """Whether the topic has, or had, records in the offsets [first, end) of a partition; compacted ones are gaps."""


_CATCH_UP = (
    "Stop this query, let `ch_sink run` with the same configuration catch up (it reads the former partitions first, "
    "and says if it cannot), and start the query again: it skips what was applied."
)


@dataclass(frozen=True, slots=True)
class _Given:
    """The topic as it is when the stream is opened."""

    topic_id: str
    partitions: int
    whole: bool

    def state(self, topic: str) -> TopicState:
        nothing = dict.fromkeys(range(self.partitions), 0)
        return TopicState(topic, self.topic_id, nothing, nothing, self.whole)


class FrameStream:
    """Owns the stream from `open` to `close`."""

    def __init__(self, settings: StreamSettings, ports: StreamPorts) -> None:
        self.settings = replace(settings, start="earliest", ends_vary=True)
        self._ports = replace(ports, group=NoGroup())
        self._coordinator: Coordinator | None = None

    def open(self, known: Known, partitions: int, execute: Execute) -> None:
        """Claim the stream, and apply what waits since an earlier life. Raises ChSinkError.

        ``partitions``: how many the batch shows.
        """
        if not known.high and (other := other_topic(self._ports.ledger, known.topic_id)):
            raise ConfigError(
                f"stream {self.settings.name!r} belongs to a job or query that reads something else: Kafka's topic "
                f"{other}",
                hint="Name the brokers (kafka.bootstrap.servers) if it is the same topic, or give this stream a name "
                "and a table of its own.",
            )
        more = {*self.progress(known), *(known.high or ())}
        given = _Given(known.topic_id, max(partitions, max(more, default=-1) + 1), known.high is not None)
        made = Coordinator(self.settings, replace(self._ports, topics=given))
        self._coordinator = made
        made.open()
        if known.high is None and made.table.target.appends:
            raise ConfigError(
                f"{made.table.now.qualified} keeps every change, and which of them were sent twice is seen from "
                "earlier records of the topic",
                hint="Name the brokers (kafka.bootstrap.servers), or use a ReplacingMergeTree.",
            )
        made.run_release(execute)

    @property
    def table(self) -> TargetTable:
        """The table as it is now."""
        assert self._coordinator is not None
        return self._coordinator.table.now

    @property
    def highest_version(self) -> int | None:
        """See `StreamTable.highest_version`."""
        assert self._coordinator is not None
        return self._coordinator.table.highest_version()

    def progress(self, known: Known) -> dict[int, int]:
        """Partition → the offset up to which everything is applied."""
        return self._ports.ledger.progress(known.topic_id)

    def close(self) -> None:
        """Give the stream back."""
        if self._coordinator is not None:
            self._coordinator.close()

    def apply(self, known: Known, spans: Mapping[int, Span], execute: Execute) -> None:
        """Apply what of the batch is new, all of it.

        Raises:
            DataLoss: records between the ledger's offsets and the batch's are missing.
            StreamFailed: keys have moved to partitions that were added, and older changes of them may be unread.
            ChSinkError: as the coordinator does; the batch can be applied again.
        """
        coordinator = self._coordinator
        assert coordinator is not None
        reached = self.progress(known)
        state, ceiling = self._state(known, spans, reached)
        if reached:
            for p in spans.keys() - reached.keys():
                coordinator.states.begin(p, state.low[p])
        for ends in self._in_order(coordinator.states, known, reached, ceiling):
            while ranges := coordinator.plan(state, None, ends):
                coordinator.run_batch(ranges, execute)
                if coordinator.held:
                    self._expect_read(known, ceiling, coordinator.held)

    def _expect_read(self, known: Known, ceiling: Mapping[int, int], held: Mapping[int, int]) -> None:
        """Raises StreamFailed if partitions may have records of before the keys were written in other bytes."""
        others = (known.high or {}).keys() - held.keys()
        if known.high is None or _unread(known, ceiling, others):
            raise StreamFailed(
                f"the keys of topic {self.settings.topic} are written in another form from offset "
                f"{min(held.values())} on, and changes that other partitions got before may be unread",
                hint=_CATCH_UP if known.high is not None else "Name the brokers (kafka.bootstrap.servers).",
            )

    def _in_order(
        self, states: States, known: Known, reached: Mapping[int, int], ceiling: Mapping[int, int]
    ) -> Iterator[Mapping[int, int]]:
        """The ends of the batch; those of the former partitions first, if keys have moved from them to added ones.

        Unless changes of all partitions compare (`States.compare`), what the former ones had before must be read first,
        and everything behind it belongs to the next epoch. Keys have moved to added partitions only if their number was
        multiplied; else no record shows where that began.

        Raises StreamFailed.
        """
        former, now = states.partitions, len(known.high or ())
        if known.high and former < now and states.compare:
            states.add_partitions(now, drained=False)
        elif known.high and former < now and (now % former or max(ceiling) >= former):
            ends = reached if now % former else ceiling
            if unread := _unread(known, ends, range(former)):
                raise StreamFailed(
                    f"topic {self.settings.topic} has {now} partitions instead of {former}, and changes that partition "
                    f"{unread[0]} got before may be unread: keys have moved, and nothing tells which changes are older",
                    hint=_CATCH_UP,
                )
            yield {p: end for p, end in ceiling.items() if p < former}
            states.add_partitions(now)
        yield ceiling

    def _expect_applied(self, topic_id: str, partition: int, offset: int) -> None:
        """Raises DataLoss for a record below the ledger's offsets that was never applied: the stream began above it."""
        ledger = self._ports.ledger
        filled = any(
            fact.topic_id == topic_id and fact.partition == partition and offset < fact.offset
            for fact in ledger.facts(TableRefilled)
        )
        read = filled or ledger.states_over(topic_id, partition, offset, offset + 1)
        if not read and self.settings.on_data_loss == "fail":
            raise DataLoss(
                f"partition {partition} of {self.settings.topic}: the stream began above offset {offset}, so the "
                "DataFrame has records that were never applied",
                hint="A stream reads upwards only: its first batch must have the lowest offsets. "
                "on_data_loss: continue leaves these records out; a separate stream and table take all of them.",
            )

    def _expect_lost(self, partition: int, lacks: str, at: int) -> None:
        """Raises DataLoss unless lost records are skipped."""
        if self.settings.on_data_loss == "fail":
            raise DataLoss(
                f"partition {partition} of {self.settings.topic}: {lacks}",
                hint=f"It needs all records from offset {at} or below on (startingOffsets). If the topic never had "
                "these (it is compacted, or written in transactions), name its brokers (kafka.bootstrap.servers); "
                "on_data_loss: continue skips them.",
            )

    def _state(
        self, known: Known, spans: Mapping[int, Span], reached: Mapping[int, int]
    ) -> tuple[TopicState, dict[int, int]]:
        """The topic as the batch shows it, and the end of the batch by partition."""
        low, ceiling = dict(reached), dict(reached)
        for p, span in spans.items():
            at = reached.get(p, span.first)
            if span.first < at:
                self._expect_applied(known.topic_id, p, span.first)
            new = span.above(at)
            low[p] = min(new.first, at)
            ceiling[p] = max(span.end, at)
            if at < new.first and known.holds(p, at, new.first):
                self._expect_lost(
                    p, f"offset {at} is the next to be applied, but the DataFrame begins at {new.first}", at
                )
                low[p] = new.first
            if known.high is None and at < span.end and new.gaps:
                self._expect_lost(p, f"the DataFrame lacks {new.gaps} of the offsets {new.first} to {new.end - 1}", at)
        high = {
            p: max(end, known.high.get(p, end)) if known.high is not None else end + 1 for p, end in ceiling.items()
        }
        return TopicState(self.settings.topic, known.topic_id, low, high, whole=False), ceiling


def _unread(known: Known, ends: Mapping[int, int], partitions: Iterable[int]) -> list[int]:
    """Those of the partitions that hold records behind these ends."""
    high = known.high or {}
    spans = ((p, ends.get(p, 0), high[p]) for p in partitions)
    return [p for p, end, last in spans if end < last and known.holds(p, end, last)]
