"""The state of a partition between chunks, and what the ordering of a batch comes to.

A running stream has no trace of why (`ch_sink explain`): `order` and `merge` ask once for each batch, or where they
leave a change out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.model.change import (
    NO_FLOOR,
    NOTHING_LOADED,
    BackwardStep,
    ChangeBatch,
    Floor,
    Loaded,
    ReadAs,
    both_readings,
)
from ch_sink.model.policy import UNREAD, TopicProfile
from ch_sink.order.version import Words


@dataclass(frozen=True, slots=True)
class SourceState:
    """The position that one connector's stream has reached in one partition."""

    epoch: int = 0
    commit: int = 0
    """Highest commit position of this epoch (80 bits)."""
    inner: int = 0
    """Highest inner position at that commit position, if they are unique in the source or every change counts."""
    wraps: int = 0
    """High bits (from bit 31) of the Kafka offset at that position."""
    redelivering: bool = False
    """The last event was a proved re-delivery."""


@dataclass(frozen=True, slots=True)
class State:
    """State of one partition as of an offset; goes into the ledger as JSON."""

    sources: dict[str, SourceState] = field(default_factory=dict)
    base_epoch: int = 0
    """No source name has an epoch below this one."""
    floors: dict[str, Floor] = field(default_factory=dict)
    """Position of the last truncate of each source name."""
    names: tuple[str, ...] = ()
    """Source names met in the topic by this partition's ranges."""
    tables: tuple[str, ...] = ()
    """Source tables met there, of several only two."""
    key_forms: dict[str, str] = field(default_factory=dict)
    """Name of a schema of keys → how they are written now, if all changes of a key have to come from one partition:
    see `ch_sink.pipeline.one_partition`."""
    key_read_as: ReadAs = field(default_factory=dict)
    """As what the table's key columns were read from Kafka keys, since it was filled."""
    loaded: Loaded = NOTHING_LOADED
    """The changes that rows loaded from the source show already."""
    doubled: dict[str, str] = field(default_factory=dict)
    """Kafka keys (hex) with two live rows because a swap of keys was open when the chunk ended, each with the
    inner position (hex) of the create half that opened it."""
    closed: dict[str, str] = field(default_factory=dict)
    """The same of keys whose former row has left since, while that transaction goes on."""
    counted: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Of a table without a key: source name → position of its snapshot, −1 for none, and whether changes followed."""
    alone: bool = False
    """The topic has only this partition, so truncates cannot arrive on another one."""
    uncounted: bool = False
    """Nothing says how many partitions the topic has, and which changes of others are unread."""
    strategy: str = ""
    """The version strategy of the last events; empty before the first."""
    latest: int = 0
    """The highest version so far where versions are times, in milliseconds since 1970."""
    looks_up: bool = False
    """A change may store values of the row that an earlier change of its key has stored."""
    profile: TopicProfile = UNREAD
    """The profile by which the partition's bytes are read."""

    def of(self, name: str) -> SourceState:
        """The state of a source name; a new one starts at the highest epoch: it may take over another's rows."""
        return self.sources.get(name) or SourceState(epoch=self.epoch)

    def with_sources(self, sources: dict[str, SourceState]) -> "State":
        return replace(self, sources={**self.sources, **sources})

    @property
    def epoch(self) -> int:
        """The highest epoch in use. That of a source counts only if positions order its changes."""
        if self.by_offset:
            return self.base_epoch
        return max([s.epoch for s in self.sources.values()] + [self.base_epoch])

    @property
    def by_offset(self) -> bool:
        """Whether Kafka offsets order the changes."""
        return self.strategy == "kafka_offset"

    @property
    def epochs(self) -> dict[str, int]:
        """The epoch in the versions of each source."""
        return {name: self.base_epoch if self.by_offset else s.epoch for name, s in self.sources.items()}

    def transactions(self) -> set[tuple[int, int]]:
        """Epoch and commit position of the transactions that may go on."""
        return {(epoch, self.sources[name].commit) for name, epoch in self.epochs.items()}

    def raised_to(self, epoch: int) -> "State":
        """The state without epochs below this one, for added partitions or a recreated topic."""
        sources = {n: replace(s, epoch=max(s.epoch, epoch)) for n, s in self.sources.items()}
        return replace(self, sources=sources, base_epoch=max(self.base_epoch, epoch))

    def under(self, strategy: str) -> "State":
        """The state for events of this strategy: versions of another one do not compare, so the epoch rises."""
        if strategy == self.strategy:
            return self
        risen = self.raised_to(self.epoch + 1) if self.strategy else self
        return replace(risen, strategy=strategy)

    def with_floor(self, floor: Floor, source: str) -> "State":
        """The state with the higher of both floors of a source name."""
        if floor <= self.floors.get(source, NO_FLOOR):
            return self
        return replace(self, floors={**self.floors, source: floor})

    def with_floors_of(self, other: "State") -> "State":
        """The state with the higher of both floors of each source name: they concern every partition."""
        state = self
        for source, floor in other.floors.items():
            state = state.with_floor(floor, source)
        return state if state.loaded >= other.loaded else replace(state, loaded=other.loaded)

    def floor_of(self, source: str) -> Floor:
        """Below it, changes of this source name were deleted by a truncate."""
        return self.floors.get(source, NO_FLOOR)

    def met(self, names: Iterable[str] = (), tables: Iterable[str] = (), key_read_as: ReadAs | None = None) -> "State":
        """The state that knows these source names, source tables and readings of keys too."""
        names, tables = sorted({*self.names, *self.sources, *names}), sorted({*self.tables, *tables})[:2]
        read_as = both_readings(self.key_read_as, key_read_as or {})
        return replace(self, names=tuple(names), tables=tuple(tables), key_read_as=read_as)

    def rewritten(self, schema: str, form: str) -> "State":
        """The state for keys in this form, which replaces that of the same schema, and of keys without one."""
        others = {name: known for name, known in self.key_forms.items() if schema and name}
        return replace(self, key_forms={**others, schema: form})

    def highest_but(self, source: str) -> tuple[int, int]:
        """The highest epoch, and the highest position in it that a change or a truncate of another source has had.

        Databases of one connector (see `ch_sink.sources.base.stream_names`) exist side by side: they do not count.
        """
        reached = [(s.epoch, s.commit) for name, s in self.sources.items() if not _siblings(name, source)]
        reached += [(floor.epoch, floor.commit) for name, floor in self.floors.items() if not _siblings(name, source)]
        return max([(self.epoch, 0), *(at for at in reached if at[0] == self.epoch)])

    def filled(self) -> "State":
        """The state where the table has been filled anew: its rows are as keys are read now."""
        return replace(self, key_read_as={})

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | None) -> "State":
        """Inverse of `to_json`; empty or None is the state of a stream's first record."""
        return msgspec.json.decode(text, type=State) if text else State()

    @staticmethod
    def base_epoch_of(text: str) -> int:
        """The `base_epoch` of a state that was written by `to_json`, without reading the rest; 0 if it has none."""
        try:
            return msgspec.json.decode(text, type=_Base).base_epoch
        except msgspec.DecodeError:
            return 0


class _Base(msgspec.Struct):
    base_epoch: int = 0


def is_one_of_several(name: str) -> bool:
    """Whether a source is a database of a connector that may read several: their positions do not compare."""
    return "/" in name


def _siblings(one: str, other: str) -> bool:
    """Whether these are one source, or databases of one connector."""
    connector, slash, _ = one.partition("/")
    return one == other or (bool(slash) and other.startswith(connector + slash))


@dataclass(frozen=True, slots=True)
class Decision:
    """The rule that decided about one change, and the record or row that it was compared with."""

    rule: str
    """``applied``, or the reason for leaving it out."""
    why: str = ""
    offset: int = -1
    """Offset of the record in the same partition that it was compared with, -1 for none."""
    version: int = -1
    """Version of the row that it was compared with, -1 for none."""


@dataclass(slots=True)
class Trace:
    """The decisions about the events of one partition, by offset."""

    follow: Callable[[ChangeBatch, "Sequenced"], None]
    """Called with each ordered batch; keeps only the events that are followed."""
    decisions: dict[int, Decision] = field(default_factory=dict)
    filled: dict[int, Decision] = field(default_factory=dict)
    """Events that left out values, with the row that these were taken from."""

    def applied(self, offsets: Sequence[int]) -> None:
        """These events were written, or change nothing that is not written."""
        self.decisions |= dict.fromkeys(offsets, Decision("applied"))

    def note(self, offset: int, rule: str, why: str, *, against: int = -1, version: int = -1) -> None:
        """A rule decided otherwise. ``against``: offset of the other record; ``version``: that of the other row."""
        self.decisions[offset] = Decision(rule, why, against, version)


@dataclass(slots=True)
class Sequenced:
    """Order of a batch's events."""

    keep: npt.NDArray[np.bool_]
    """False for proved re-deliveries."""
    epoch: npt.NDArray[np.int64]
    commit: Words
    """The order of the events within an epoch (n, 2): the effective commit position, or the Kafka offset."""
    transaction: Words
    """Effective commit position (n, 2), which the events of a transaction share, if positions are followed."""
    version: Words
    """Version of each event's row (half 1)."""
    leaving: Words
    """Version of the delete row that leaves the row's old place (half 0)."""
    state: State
    steps: list[BackwardStep] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    trace: Trace | None = None
    """The trace in which `merge` notes its decisions, if there is one."""
