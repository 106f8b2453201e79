"""An open stream: its claim, topic and table, the states of its partitions, and its waiting changes."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

from ch_sink import __version__
from ch_sink.decode import joined
from ch_sink.errors import DataLoss, StreamFailed
from ch_sink.model.change import UnknownColumn
from ch_sink.model.counts import Counts
from ch_sink.model.policy import Policy, TopicProfile
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.plans import Changed
from ch_sink.pipeline.target import Target
from ch_sink.ports import Claim, Fence, Ledger, RangeIntent
from ch_sink.stream.batch_plan import LOST
from ch_sink.stream.claims import expect_same_terms, types_of
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts, StreamSettings, TableAdmin
from ch_sink.stream.rounds import Rounds
from ch_sink.stream.tasks import RangeDone, ReleaseDone, ReleaseTask
from ch_sink.table.ddl import own_rows
from ch_sink.table.evolve import FILL_COLUMN, adding_by_hand
from ch_sink.table.model import TargetTable

log = logging.getLogger("ch_sink")

_BLOCKS = 2
"""Raised when the same chunk is cut into other blocks than before, under other tokens."""


def fingerprint(policy: Policy, table: TargetTable, source_table: str = "") -> str:
    """The settings that decide which rows a range gives, as a short text without secrets.

    ``source_table``: the only source table whose records the stream takes; empty if it takes all.
    """
    columns = sorted((c.name, c.type, c.default_kind, c.default_expression) for c in table.columns)
    keys = table.sorting_key, table.partition_key
    decisive = (__version__, _BLOCKS, policy, table.engine, columns, *keys, source_table)
    return blake2b(repr(decisive).encode(), digest_size=12).hexdigest()


class StreamTable:
    """The stream's table: as it is now, and altered where ranges ended because of it.

    A job that is killed in the middle leaves no trace but the table: the next one reads the range again, which ends for
    the columns that are still missing, and renews the views that lack columns of the table.
    """

    def __init__(self, admin: TableAdmin, ledger: Ledger, settings: StreamSettings, detected: TargetTable) -> None:
        """Recreates views that the table has outgrown: altered by hand, or by a job that was killed before its view.

        Raises as `TableAdmin` does.
        """
        self._admin, self._ledger, self._settings = admin, ledger, settings
        # Of this life: a round that ends because columns are missing has stored nothing behind that end.
        self._used: set[str] = set()
        self._shown_by: tuple[str, ...] = ()
        self._use(admin.carry_out(detected, (), ()))

    def add_columns(self, barriers: Sequence[Barrier]) -> None:
        """Add the columns at which ranges ended. Raises as `TableAdmin` and the ledger do."""
        columns = joined([column for barrier in barriers for column in barrier.columns])
        self._expect_filled([column for column in columns if column.change == "add"])
        settings, ledger = self._settings, self._ledger
        policy, altered = settings.policy, {c.name for c in columns}
        # What the source sends until now, these columns hold as it is before and after. A kill may come in between.
        left = tuple(one for one in types_of(self.now, policy) if one[0] not in altered)
        ledger.restate(settings.terms(self.now.uuid, left))
        table = self._admin.carry_out(self.now, columns, next((b.key for b in barriers if b.key), ()))
        expect_same_terms(settings.name, ledger, table, policy, settings.source_table)
        ledger.restate(settings.terms(table.uuid, types_of(table, policy)))
        self._use(table)
        changed = [found for c in columns if (found := self.now.column(c.name)) is not None]
        log.warning("%s was altered: %s", self.now.qualified, "; ".join(f"{c.name} {c.type}" for c in changed))
        if new := [c.name for c in columns if c.change == "add" and c.filled]:
            log.warning(
                "stored rows of %s have the present default of %s. If the source has changed or dropped it since it "
                "added the column, or it is a function such as nextval(), `ch_sink verify CONFIG --against source` "
                "shows the difference, and `ch_sink repair CONFIG` corrects it",
                self.now.qualified,
                ", ".join(map(repr, new)),
            )

    def _expect_filled(self, columns: Sequence[UnknownColumn]) -> None:
        """Raises StreamFailed if the table has rows, and new columns that are NOT NULL have other values there.

        Those of plain JSON can be null, and nothing states their defaults.
        """
        unknown = {c.name: str(c.clickhouse_type) for c in columns if not (c.filled or c.inferred)}
        if unknown and self._admin.has_rows(self.now, of_any=True):
            first = min(c.first_offset for c in columns)
            names, by_hand = ", ".join(map(repr, unknown)), "; ".join(adding_by_hand(self.now, unknown))
            raise StreamFailed(
                f"the change event at offset {first} has the new column {names}, and "
                f"does not state what stored rows of {self.now.qualified} have there at the source",
                hint=f"Add it with the value that the source gave to its rows: {by_hand}"
                + ("" if self._settings.policy.columns.source else f"; {FILL_COLUMN}")
                + ". Then `ch_sink resume CONFIG`.",
            )

    def key_is_known(self, profile: TopicProfile) -> None:
        """Recreate views of a history that were created for another key than this one. Raises as `TableAdmin` does.

        ``profile``: what a range has learned; it may know no key.
        """
        if not self.target.appends or profile.key_source not in ("row", "configuration"):
            return
        key = self._settings.policy.columns.shown_key(profile.key_columns)
        if key != self._shown_by:
            self._admin.carry_out(self.now, (), key)
            self._shown_by = key

    def truncate(self, version: int, supersede: Callable[[], Sequence[Fence]]) -> None:
        """Delete the rows below this version."""
        self._admin.truncate(self.now, version, self.target.system.version, supersede)

    def changed(self, intent: RangeIntent) -> Changed:
        """Whether earlier attempts at the range may have stored other rows than this one would."""
        others = {
            earlier for earlier in intent.earlier if earlier not in self._used and not self._same(earlier, intent)
        }
        return "unknown" if others == {""} else "other" if others else ""

    def fingerprint_of(self, start: int, end: int) -> str:
        """The fingerprint of a range: with its bounds, if the next attempt may have others, and so other chunks."""
        made = f"{self.fingerprint}@{start}-{end}" if self._settings.ends_vary else self.fingerprint
        self._used.add(made)
        return made

    def _same(self, earlier: str, intent: RangeIntent) -> bool:
        """Whether a range of this fingerprint, with its bounds, had the chunks of the intent from its start on."""
        made, _, bounds = earlier.partition("@")
        start, _, end = bounds.partition("-")
        known = made == self.fingerprint and end == str(intent.end)
        return known and (start == str(intent.start) or intent.start % intent.chunk_offsets == 0)

    def highest_version(self) -> int | None:
        """The highest version of the stream's rows, −1 if there are none, None if versions are times or absent."""
        if self.target.layout.kind == "time" or self.target.system.version is None:
            return None
        return self._admin.highest_version(self.now)

    def has_rows(self) -> bool:
        """Whether the table has rows of the stream, whoever wrote them."""
        return self._admin.has_rows(self.now)

    def highest_epoch(self, version: int | None) -> int | None:
        """The highest epoch in the versions of the stream's rows, be they of another writer; None if there is none.

        ``version``: the highest version, if it is known.
        """
        layout = self.target.layout
        if self.target.system.version is None or layout.kind == "time":
            return None
        newest = self._admin.highest_version(self.now) if version is None else version
        return layout.epoch_of(newest) if newest >= 0 else None

    def _use(self, table: TargetTable) -> None:
        """Use this version of the table from now on, here and in tasks."""
        self.now, self.target = table, Target.of(table, self._settings.policy)
        self.fingerprint = fingerprint(self._settings.policy, table, self._settings.source_table)
        self._used.add(self.fingerprint)


@dataclass(slots=True)
class OpenStream:
    """A stream that its coordinator has claimed."""

    settings: StreamSettings
    ports: StreamPorts
    claim: Claim
    table: StreamTable
    topic: TopicState = field(init=False)
    states: States = field(init=False)
    reached: dict[int, int] = field(init=False)
    """Partition → next offset."""
    stored_version: int | None = field(init=False)
    """The highest version of the stream's rows when the topic was entered: see `StreamTable.highest_version`."""

    unsure: Mapping[int, int] = field(default_factory=dict)
    """Partition → offset below which a history may have changes that its ledger lacks: they are looked up."""
    doubtful: bool = False
    """Rollups may have what the table has not: rounds have begun, and have not ended well."""

    def enter(self, topic: TopicState) -> None:
        """Work on this topic from now on. Raises as the ledger does."""
        ledger = self.ports.ledger
        self.topic, self.stored_version = topic, self.table.highest_version()
        epoch = self.table.highest_epoch(self.stored_version)
        table, columns = self.table.now, self.settings.policy.columns
        shared = bool(columns.source) and not own_rows(table, columns)
        # A batch that was cut longer before may have stored rows of an epoch in which it is read again.
        known = shared or (self.settings.ends_vary and topic.topic_id in ledger.topic_ids())
        partitions, has_rows = len(topic.low) if topic.whole else 0, self.table.has_rows
        self.states = States(ledger, topic.topic_id, partitions, epoch, shared=known, has_rows=has_rows)
        self.reached = ledger.progress(topic.topic_id)

    def add_columns(self, barriers: Sequence[Barrier]) -> None:
        """Add the columns for which ranges ended before a chunk; what was applied is already in the ledger."""
        if barriers:
            self.table.add_columns(barriers)
            self.fill_rollups(doubtful=False)

    def truncate(self, version: int) -> None:
        """Delete the rows below this version. Raises as `TableAdmin` and the ledger do."""
        self.table.truncate(version, self._supersede)

    def look_at_rollups(self, last: Claim | None) -> None:
        """Compute the rollups that may have another difference than the table: see docs/internals/storing.md.

        Only a job that has come to its end says so beside a rollup. If that was not the owner of the last claim, the
        table may have changed since, or the ledger or the rollup is an older one.

        Args:
            last: the claim before this one, released or not.
        """
        known = last is not None and last.released
        self.fill_rollups(doubtful=not known, last=last.run_id if last is not None else "")

    def fill_rollups(self, *, doubtful: bool, last: str = "") -> None:
        """Compute rollups from the table, all of them if they are ``doubtful``. No task is at work.

        ``last``: those, too, that the job of this run has not kept.
        """
        if self.table.now.rollups:
            self.ports.table.fill_rollups(self.table.now, self._supersede, doubtful=doubtful, last=last)

    def keep_rollups(self) -> None:
        """The job leaves the stream: note that the rollups are as the table is, unless they are in doubt.

        Raises LedgerConflict if another job has the stream, TakenBack if the ledger is an older one.
        """
        if self.table.now.rollups and not self.doubtful:
            self.ports.ledger.check_claim()
            self.ports.table.keep_rollups(self.table.now, self.claim.run_id)

    def certainly(self, rounds: Rounds) -> Rounds:
        """The rounds; rollups are in doubt as long as they have not ended well."""
        if self.doubtful:
            self.fill_rollups(doubtful=True)
        self.doubtful = True
        yield from rounds
        self.doubtful = False

    def _supersede(self) -> list[Fence]:
        """Begin an execution of every partition: whatever ran there stores nothing more."""
        topic_id, ledger = self.topic.topic_id, self.ports.ledger
        mine = {*self.topic.low, *ledger.progress(topic_id)}  # partitions may have come since the topic was entered
        return [ledger.begin(topic_id, p, self.claim, "rollups") for p in sorted(mine)]

    def raise_failure(self, results: Iterable[RangeDone | ReleaseDone]) -> None:
        """Raise the error of the first task that failed; log the others."""
        failed = [r for r in results if r.failure is not None]
        for other in failed[1:]:
            if str(other.failure) != str(failed[0].failure):  # else they were stored together
                log.error("partition %d: %s", other.partition, other.failure)
        for first in failed[:1]:
            assert first.failure is not None
            if isinstance(first.failure, DataLoss) and isinstance(first, RangeDone):
                skips = self.settings.on_data_loss == "continue"
                unclear = "The topic's watermarks say that these offsets are there: check whether its brokers agree."
                raise DataLoss(str(first.failure), hint=unclear if skips else LOST)
            raise first.failure


class Releases:
    """The changes that wait for the values of a row that changed its key."""

    def __init__(self, stream: OpenStream, add: Callable[[Counts], None]) -> None:
        """``add``: is given the figures of what was released."""
        self._stream, self._add = stream, add
        topic, places = stream.topic, stream.ports.pending.places()
        self.numbers = {p: n for (t, p), n in places.items() if t == topic.topic_id and n and p in topic.low}
        """Partition → number of changes that wait."""
        # Only tasks of this claim add to them from now on, and say so.
        self._settled = {p for p in topic.low if (topic.topic_id, p) not in places}

    def range_begins(self, partition: int, attempt: int) -> bool:
        """A task is about to read a range; returns whether nothing of its partition is in the pending table."""
        # What an earlier attempt at the range stored, or this one stores before it fails, is looked at again.
        settled = partition in self._settled and not attempt
        self._settled.discard(partition)
        return settled

    def ranges_ended(self, results: Sequence[RangeDone]) -> None:
        """Take up what ranges have left waiting. A partition without a range keeps its waiting changes."""
        self.numbers |= {r.partition: r.waiting for r in results if r.failure is None}
        self.numbers = {p: n for p, n in self.numbers.items() if n}
        self._settled |= {r.partition for r in results if r.settled}

    def release(self, *, caught_up: bool = False) -> Rounds:
        """Apply waiting changes whose values have arrived.

        The table may have lost columns since they began to wait, or may have ignored them until now. Only a stream
        that has caught up gives changes up: after an outage, or if another partition lags far behind, the values may
        not have been read yet.
        """
        stream, left, before = self._stream, dict(self.numbers), -1
        lacking: list[Barrier] = []
        while left and (lacking or sum(left.values()) != before):
            before = sum(left.values())
            tasks = [self._task(p, stream.states.waiting(p), stream.reached.get(p, 0), caught_up) for p in sorted(left)]
            results = cast(Sequence[ReleaseDone], (yield tasks))
            stream.raise_failure(results)
            for done in results:
                if done.state is not None:
                    stream.states.released(done.partition, done.state)
                    self._add(done.counts)
            lacking = [done.lacking for done in results if done.lacking is not None]
            stream.add_columns(lacking)
            left = {done.partition: done.waiting for done in results if done.waiting}
        self.numbers = left

    def _task(self, partition: int, state: State, below: int, caught_up: bool) -> ReleaseTask:
        stream = self._stream
        return ReleaseTask(
            stream.settings.name,
            stream.settings.topic,
            stream.topic.topic_id,
            partition,
            stream.table.now,
            state,
            below=below,
            caught_up=caught_up,
            claim=stream.claim,
            changed="other" if stream.unsure else "",
        )
