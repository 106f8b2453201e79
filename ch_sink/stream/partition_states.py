"""The state with which a range begins, from the last result, the ledger and changes of the topic itself."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ch_sink.errors import StreamFailed
from ch_sink.model.change import Floor
from ch_sink.order import State
from ch_sink.pipeline.barrier import expect_one_table
from ch_sink.ports import Ledger, TableRefilled, TopicFacts, TruncateFloor

log = logging.getLogger("ch_sink")


class States:
    """States of one stream's partitions, for one topic id at a time."""

    def __init__(
        self,
        ledger: Ledger,
        topic_id: str,
        partitions: int,
        stored_epoch: int | None,
        *,
        shared: bool = False,
        has_rows: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            partitions: how many the topic has now, 0 if nothing says so; used if the ledger does not know the topic.
            stored_epoch: highest epoch in the table, None if it is empty.
            shared: other streams may have written that epoch, which live on.
            has_rows: whether the table has any; asked if the stream has read nothing yet.
        """
        self._ledger, self._topic_id = ledger, topic_id
        self._stored = -1 if stored_epoch is None else stored_epoch
        self._compared = shared
        """Whether the table's epoch was compared with the ledger's. Streams of one table would outbid each other."""
        self._known: dict[int, tuple[int, State]] = {}
        self._looked_up: dict[int, tuple[int, str | None]] = {}
        """Partition → offset, and the state that the ledger has there."""
        self._common = State()
        """Facts about every partition: floors of truncates, names of sources and source tables, readings of keys."""
        self._epoch = 0
        self.truncates: list[TruncateFloor] = ledger.facts(TruncateFloor)
        """Of all sources."""
        for floor in self.truncates:
            self._common = self._common.with_floor(Floor(floor.epoch, floor.commit, floor.inner), floor.source)
        refills = ledger.facts(TableRefilled)
        for refill in refills:
            if refill.topic_id == topic_id:
                self._common = replace(self._common, loaded=max(self._common.loaded, refill.loaded))
        last = self._last_states(refills)
        self._newest = self._least = 0
        """Of versions that are times: the highest one, and the one from which on they go on in every partition."""
        newest_epoch = max((state.base_epoch for state in last), default=0)
        for state in last:
            # Partitions that have had nothing since the keys were rewritten know the former form.
            self.met(state if state.base_epoch == newest_epoch else replace(state, key_forms={}))
        topics = ledger.facts(TopicFacts)
        mine = [t for t in topics if t.topic_id == topic_id]
        if mine:
            self._epoch = max(t.epoch for t in mine)
            self._partitions = max(t.partitions for t in mine)
        else:
            self._partitions = partitions
            # If there is anything, another topic was opened, or the ledger lost: what is read now beats all of it.
            others = [state.epoch for state in last] + [t.epoch for t in topics]
            self._epoch = max([*others, self._stored]) + 1
            self._record(on_rows=not others and has_rows())
        self._orders = {(state.strategy, state.looks_up) for state in last}

    def _last_states(self, refills: Sequence[TableRefilled]) -> list[State]:
        """The last states of all partitions. What was read before a refill says nothing of how rows are keyed now."""
        filled: dict[tuple[str, int], int] = {}
        for refill in refills:
            place = (refill.topic_id, refill.partition)
            filled[place] = max(filled.get(place, 0), refill.offset)
        topics = self._ledger.topic_ids() if refills else []  # the newest first
        last = next((n for n, topic_id in enumerate(topics) if any(topic_id == of for of, _ in filled)), -1)
        states: list[State] = []
        for total in self._ledger.totals():
            state, begun = State.from_json(total.state), filled.get((total.topic_id, total.partition), -1)
            since = not refills or (total.topic_id in topics[: last + 1] and total.next_offset > begun)
            states.append(state if since else state.filled())
        return states

    @property
    def partitions(self) -> int:
        """How many partitions the stream knows the topic to have, 0 if nothing says so."""
        return self._partitions

    @property
    def compare(self) -> bool | None:
        """Whether changes of a key may come from several partitions at once: positions order them, and none needs the
        row that another one stores.

        None if no change has been read yet.
        """
        read = [order for order in self._orders if order[0]]
        by_order = ("kafka_offset", "source_time")
        return all(name not in by_order and not looks_up for name, looks_up in read) if read else None

    def add_partitions(self, partitions: int, *, drained: bool = True) -> None:
        """The topic has more partitions than before. Keys may have moved between them, so all epochs rise.

        ``drained``: what the former partitions held before was read. Else positions tell what came before, within the
        epochs as they are.
        """
        if not 0 < self._partitions < partitions:
            return
        self._partitions, self._least = partitions, self._newest
        self._epoch = self.highest_epoch + 1 if drained else self._epoch
        self._record()

    @property
    def key_forms(self) -> Mapping[str, str]:
        """The present form of keys, by the name of their schema; empty if it is unknown."""
        return self._common.key_forms

    def change_keys(self, schema: str, form: str) -> None:
        """Keys are written in this form from now on, and what was written otherwise was read: all epochs rise."""
        self._common, self._least = self._common.rewritten(schema, form), self._newest
        self._epoch = self.highest_epoch + 1
        self._record()

    def begin(self, partition: int, offset: int) -> None:
        """A partition of which nothing was read begins at this offset, after others.

        Its keys may have been in those, so it begins in the highest epoch of all.
        """
        self._known[partition] = (offset, State(latest=self._newest).raised_to(self.highest_epoch))

    def rise_above_table(self) -> None:
        """Go on in the epoch above rows of a writer that this ledger does not know: no change would win over them.

        Tasks may raise epochs before the ledger knows: what was begun must have ended.
        """
        compared, self._compared = self._compared, True
        if not compared and self._stored > self._epoch and self._stored > self.highest_epoch:
            log.warning(
                "the table has rows of epoch %d, above all that the ledger knows (%d), as of another stream or ledger: "
                "reading continues in epoch %d",
                *(self._stored, self.highest_epoch, self._stored + 1),
            )
            self._epoch = self._stored + 1
            self._record()

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that the ledger knows of the topic."""
        return max(self._epochs.values(), default=self._epoch)

    @property
    def _epochs(self) -> dict[int, int]:
        """Partition → its epoch."""
        found = dict.fromkeys(range(self._partitions), self._epoch)
        totals = [t for t in self._ledger.totals() if t.topic_id == self._topic_id]
        last = [(t.partition, State.from_json(t.state)) for t in totals]
        for partition, state in [*last, *((p, state) for p, (_, state) in self._known.items())]:
            found[partition] = max(found.get(partition, self._epoch), state.epoch)
        return found

    def expect_one_epoch(self, reached: Mapping[int, State], *, waiting: bool) -> None:
        """Raises StreamFailed if a truncate is to be applied and the partitions are in several epochs, or will be.

        Whatever comes in a lower epoch would lose against it, before the truncate or after it. ``reached``: the states
        of partitions that have gone on; ``waiting``: others wait for the epoch after this one.
        """
        epochs = self._epochs | {p: max(self._epoch, state.epoch) for p, state in reached.items()}
        if waiting or len(set(epochs.values())) > 1:
            found = ", ".join(f"{epoch} in partition {p}" for p, epoch in sorted(epochs.items())[:5])
            why = "keys have moved" if waiting else "positions have stepped back in some partitions only"
            raise StreamFailed(
                f"a truncate cannot be applied: {why} (epochs: {found}), "
                "so they do not tell which changes of the others came before it",
                hint="Set truncate: ignore and resume the stream, then fill the table again with "
                "`ch_sink resync CONFIG --apply`; or use a topic with one partition. A comparison that meets it needs "
                "--against source.",
            )

    def look_up(self, at: Mapping[int, int]) -> None:
        """Ask the ledger for the states at these offsets, all at once. ``at``: partition → offset."""
        wanted = {p: offset for p, offset in at.items() if self._known.get(p, (-1, None))[0] != offset}
        found = self._ledger.states_at(self._topic_id, wanted)
        self._looked_up |= {p: (offset, found.get(p)) for p, offset in wanted.items()}

    def at(self, partition: int, offset: int) -> State:
        """The state with which a range begins at this offset."""
        known = self._known.get(partition)
        if known is not None and known[0] == offset:
            state = known[1]
        else:
            if self._looked_up.get(partition, (-1, None))[0] != offset:
                self.look_up({partition: offset})
            text = self._looked_up[partition][1]
            state = State.from_json(text) if text else self._latest(partition, offset)
        state = state.raised_to(self._epoch).with_floors_of(self._common)
        state = state.met(self._common.names, self._common.tables)
        state = replace(
            state,
            key_forms=self._common.key_forms,
            key_read_as=self._common.key_read_as,
            latest=max(state.latest, self._least),
        )
        return replace(state, alone=self._partitions == 1, uncounted=not self._partitions)

    def _latest(self, partition: int, offset: int) -> State:
        """The state if no range ended there (offsets were skipped, or the stream begins). Never a later offset's.

        Changes that are read again from an offset of which no state is known begin an epoch of their own: positions
        alone would let all of them lose to the rows that they wrote at first.
        """
        for total in self._ledger.totals():
            if (total.topic_id, total.partition) != (self._topic_id, partition) or not total.state:
                continue
            last = State.from_json(total.state)
            if total.next_offset <= offset:
                return last
            above = max(last.epoch + 1, self._stored + (self._stored > self._epoch))
            if self._epoch < above:
                self._epoch = above
                self._record()
            return State(latest=last.latest)
        return State(latest=self._newest, counted=self._common.counted)

    def put(self, partition: int, offset: int, state: State) -> None:
        """A range ended at this offset with this state."""
        self._known[partition] = (offset, state)
        self._looked_up.pop(partition, None)
        self.met(state)
        self._orders.add((state.strategy, state.looks_up))

    def met(self, state: State) -> None:
        """A partition has what this state of it has met."""
        common = self._common.met((*state.names, *state.sources), state.tables, state.key_read_as)
        counted = common.counted | {name: (at, True) for name, (at, _) in state.counted.items()}
        self._common = replace(common, key_forms=common.key_forms | state.key_forms, counted=counted)
        self._newest = max(self._newest, state.latest)

    def expect_one_table(self, source: str, offset: int) -> None:
        """Raises StreamFailed if changes of others than the truncated source table were met."""
        expect_one_table(source, self._common, offset)

    def truncated(self, floor: Floor, source: str, version: int) -> None:
        """Changes of this source name below this floor were deleted in every partition: rows below this version."""
        if floor > self._common.floor_of(source):
            self._common = self._common.with_floor(floor, source)
            self.truncates.append(TruncateFloor(floor.epoch, floor.commit, floor.inner, source, str(version)))
            self._ledger.record(self.truncates[-1])

    def waiting(self, partition: int) -> State:
        """The state with which waiting changes are applied after the ranges of a batch."""
        if partition in self._known:
            return self._known[partition][1].with_floors_of(self._common)
        return self.at(partition, self._ledger.progress(self._topic_id).get(partition, 0))

    def released(self, partition: int, state: State) -> None:
        """Waiting changes were applied, or given up; a key swap that they opened stays open."""
        if partition in self._known:
            offset, known = self._known[partition]
            self._known[partition] = (offset, replace(known, doubled=state.doubled))

    def _record(self, *, on_rows: bool = False) -> None:
        self._ledger.record(TopicFacts(self._topic_id, self._partitions, self._epoch, on_rows))
