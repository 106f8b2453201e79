"""Dead letters of one partition, applied after all: in order, each in the place that it had among the changes.

A letter gets the version that its change would have had when it was read: the epoch of its time and its own commit
position. So a newer row wins over it, also one that is stored while the retry runs. Where the table cannot tell which
change is newer (rows of a collapsing table that were deleted left nothing, or there are no versions), the topic does:
a later record of the same key decides. What a repair has made of the table since is not undone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TypeVar

import numpy as np

from ch_sink.model.change import BadRecord, ChangeBatch, Records
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int, to_ints, to_words
from ch_sink.pipeline.ordering import in_given_order
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.ports import BackwardStepSeen, DeadLetter, Ledger, RowsRemoved, TableRefilled, TableRepaired, TopicFacts
from ch_sink.sources import source_for
from ch_sink.stream.letter_keys import KeyValues, LaterRecords, last_offsets
from ch_sink.stream.letter_rows import LetterRows
from ch_sink.table.model import Family

__all__ = ["LetterRetry", "Retried"]

F = TypeVar("F", BackwardStepSeen, RowsRemoved, TableRefilled)
LaterKeys = Callable[[int, Collection[int]], LaterRecords | None]
"""First offset, offsets of letters → the other records from there on, as far as the stream has read; None if the topic
has lost its front up to there."""

_NO_END = 1 << 62
_UNCERTAIN = "so that a newer change of the row cannot be ruled out"
_NEXT = "drop the letter, and repair the table if the row is not right"
_GONE = f"the topic does not hold all later records, {_UNCERTAIN}: {_NEXT}"
_BEGUN = f"a batch of the partition has begun and not ended, {_UNCERTAIN}: retry when the job has ended it"
_REPAIRED = (
    "the table was repaired after this change, which would undo the repair or be counted twice: drop the letter, and "
    "repair again if the row is not right"
)
_COMPACTED = f"the topic was compacted, and no longer holds the record itself, {_UNCERTAIN}: {_NEXT}"
_KEYLESS = f"later records have no Kafka key, {_UNCERTAIN}: {_NEXT}"
_MOVED = f"the topic got more partitions since, between which keys move, {_UNCERTAIN}: {_NEXT}"


@dataclass(slots=True)
class Retried:
    """What became of the letters, by offset."""

    applied: list[int] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)
    """A newer change of their keys is stored."""
    waiting: list[int] = field(default_factory=list)
    """Their changes wait for the values of another row, and are applied by the job."""
    failed: dict[int, str] = field(default_factory=dict)
    """Offset → why it still cannot be applied."""


@dataclass(frozen=True, slots=True)
class LetterRetry:
    """Retries letters of one topic-partition. The ledger is claimed, and no job works on the stream."""

    sink: PartitionSink
    ledger: Ledger
    state: State
    """The state that the partition has reached."""
    later_keys: LaterKeys

    def run(self, letters: Sequence[DeadLetter]) -> Retried:
        """Apply letters of one partition, by offset. Raises ChSinkError; what was applied by then stays applied."""
        done = Retried()
        queue = sorted(letters, key=lambda letter: letter.offset)
        all_of_them = {letter.offset for letter in queue}
        queue = self._not_loaded(queue, done)
        while queue:
            records = _records(queue)
            decoder, known = self.sink.prepared(records, self.state)
            batch = decoder.decode(records, known.profile)
            failed = _reasons(batch.bad, records)
            done.failed.update(failed)
            events = set(batch.offset.tolist())
            done.applied += [o for o in records.offsets.tolist() if o not in events and o not in failed]
            good = self._without_unknown_columns(batch, done)
            if not good:
                return done
            queue = [letter for letter in queue if letter.offset in good]
            if len(queue) < len(records):
                continue  # decode again without the others
            before = self._states_before(batch)
            assigned = self._assigned(batch, before)
            order = in_given_order(batch, self.sink.target, known, assigned)
            values = partial(decoder.key_values, profile=known.profile)
            newer = self._superseded(batch, records, order, before, values, all_of_them, done)
            newer |= self._repaired(batch, order, newer, done)
            rest = [letter for letter in queue if letter.offset not in newer]
            if rest:
                self._apply(rest, known, assigned, done)
            return done
        return done

    def _not_loaded(self, letters: list[DeadLetter], done: Retried) -> list[DeadLetter]:
        """The letters that the rows do not show which were loaded since: the others are superseded.

        If the topic was recreated, and the table filled after that, the rows show all letters of the former topic.
        """
        loads, newer = self._facts(TableRefilled), set(self._newer_topics())
        refilled = any(load.topic_id in newer for load in self.ledger.facts(TableRefilled))
        shown = {x.offset for x in letters if refilled or any(load.shows(x.offset, x.timestamp) for load in loads)}
        done.superseded += sorted(shown)
        return [letter for letter in letters if letter.offset not in shown]

    def _without_unknown_columns(self, batch: ChangeBatch, done: Retried) -> set[int]:
        """Offsets of the events that need no column that the table lacks."""
        offsets = set(batch.offset.tolist())
        if self.sink.target.policy.changes.evolve == "ignore":
            return offsets
        for column in batch.unknown:
            done.failed[column.first_offset] = f"the table lacks the column {column.name!r}, or has it too narrow"
            offsets.discard(column.first_offset)
        return offsets

    def _states_before(self, batch: ChangeBatch) -> dict[int, tuple[int, State]]:
        """Offset → the nearest recorded end before it, and the state there, in the epoch in which it was read.

        Epochs rise as a batch begins, as if partitions were added: the states behind such a batch show it.
        """
        name = self.sink.name
        found = {}
        for offset in batch.offset.tolist():
            end, text = self.ledger.state_before(name.topic_id, name.partition, offset) or (0, "")
            state = State.from_json(text)
            for *_, over in self.ledger.states_over(name.topic_id, name.partition, offset, offset + 1):
                then = State.from_json(over)
                state = state.under(then.strategy or state.strategy).raised_to(then.base_epoch)
            found[offset] = end, state
        return found

    def _assigned(self, batch: ChangeBatch, before: Mapping[int, tuple[int, State]]) -> dict[int, tuple[int, int]]:
        """Offset → epoch and commit position, as the change would have had them when it was read."""
        steps = [step for step in self._facts(BackwardStepSeen) if step.step != "redelivery"]
        strategy = self.sink.target.strategy(source_for(batch.connector) if batch.connector else None)
        found: dict[int, tuple[int, int]] = {}
        for i, offset in enumerate(batch.offset.tolist()):
            source = batch.source_name[int(batch.source_code[i])]
            end, state = before[offset]
            state = state.under(strategy)
            if strategy != "source_position":
                found[offset] = state.base_epoch, offset
                continue
            here = state.of(source)
            risen = sum(s.source == source and end <= s.offset <= offset for s in steps)
            own = to_int(batch.commit, i)
            stated = bool(batch.has_commit[i]) or risen
            found[offset] = here.epoch + risen, own if stated else max(own, here.commit)
        return found

    def _superseded(
        self,
        batch: ChangeBatch,
        records: Records,
        order: Sequenced,
        before: Mapping[int, tuple[int, State]],
        values: KeyValues,
        letters: Collection[int],
        done: Retried,
    ) -> set[int]:
        """Offsets of the letters that need not be applied, or of which it is not known whether they may be."""
        target = self.sink.target
        settled = set(batch.offset[~order.keep].tolist())  # a truncate came after them, or rows that show them
        done.superseded += sorted(settled)
        engine = target.table.engine
        by_version = engine.family is Family.REPLACING and target.system.version and target.layout.kind != "time"
        if not by_version and not target.appends:
            return settled | self._followed(batch, records, before, values, letters, settled, done)
        unsure = set(before)
        if not by_version or not (self._facts(RowsRemoved) or self._ordered_otherwise(batch, before)):
            filled = max((load.offset for load in self._facts(TableRefilled)), default=0)
            unsure = {offset for offset in before if offset < filled}
        if unsure:
            # Marks of deleted rows are gone, or were never in a table that was filled anew, and a delete that was
            # delivered again has left none. Or versions of later changes do not compare with those of the letters.
            others = set(before) - unsure
            settled |= self._followed(batch, records, before, values, letters, settled | others, done)
        if target.system.version is None or self.sink.ports.lookup is None:
            return settled
        versions = to_ints(order.version)
        rows = LetterRows(batch, target, self.sink.ports.lookup)
        if batch.key is None:
            left = {i: versions[i] for i, offset in enumerate(batch.offset.tolist()) if offset not in settled}
            counted = {int(batch.offset[i]) for i in rows.counted(left)}
            done.applied += sorted(counted)
            return settled | counted
        for i, offset in enumerate(batch.offset.tolist()):
            if offset in settled:
                continue
            key = batch.key.slice(i, 1)
            # Of a table that keeps every change, the newest row up to this very change.
            below = target.layout.to_arrow(to_words([versions[i] + 1])) if target.appends else None
            stored = self.sink.ports.lookup.fetch(key, below).rows
            held = rows.versions(stored)
            if versions[i] in held or (target.appends and rows.of_later_delivery(i, key, versions[i])):
                done.applied.append(offset)
            elif not target.appends and any(v > versions[i] for v in held):
                done.superseded.append(offset)
            else:
                continue
            settled.add(offset)
        return settled

    def _repaired(self, batch: ChangeBatch, order: Sequenced, settled: Collection[int], done: Retried) -> set[int]:
        """Offsets of the other letters that are older than a repair whose rows their changes would win over.

        The repair read the row after them. Where it is counted, nothing tells whether the repair brought it.
        """
        end, lookup = self._repaired_up_to(), self.sink.ports.lookup
        older = {o: i for i, o in enumerate(batch.offset.tolist()) if o < end and o not in settled}
        rows = LetterRows(batch, self.sink.target, lookup) if older and lookup is not None else None
        found = set[int]()
        for offset, i in older.items():
            if rows is not None and rows.is_below(i, to_int(order.version, i)):
                continue
            found.add(offset)
            if rows is not None and rows.shows(i):
                done.superseded.append(offset)
            else:
                done.failed[offset] = _REPAIRED
        return found

    def _repaired_up_to(self) -> int:
        """The offset below which changes of the partition came before the last repair, 0 if there is none."""
        name, fillings = self.sink.name, len(self.ledger.facts(TableRefilled))
        # A filling since then makes a repair void.
        standing = [fact for fact in self.ledger.facts(TableRepaired) if fact.since >= fillings]
        if {fact.topic_id for fact in standing} & set(self._newer_topics()):
            return 1 << 63  # the topic was recreated, and the table repaired then
        mine = name.topic_id, name.partition
        return max((fact.offset for fact in standing if (fact.topic_id, fact.partition) == mine), default=0)

    def _newer_topics(self) -> Iterable[str]:
        """Ids of the topics that the stream has read since this one."""
        return takewhile(lambda topic_id: topic_id != self.sink.name.topic_id, self.ledger.topic_ids())

    def _ordered_otherwise(self, batch: ChangeBatch, before: Mapping[int, tuple[int, State]]) -> bool:
        """Whether changes got versions by another strategy when the letters were read than now."""
        strategy = self.sink.target.strategy(source_for(batch.connector) if batch.connector else None)
        states = [self.state, *(state for _, state in before.values())]
        return not {state.strategy for state in states} <= {"", strategy}

    def _facts(self, kind: type[F]) -> list[F]:
        """What the ledger knows of the partition."""
        name = self.sink.name
        return [
            fact
            for fact in self.ledger.facts(kind)
            if (fact.topic_id, fact.partition) == (name.topic_id, name.partition)
        ]

    def _followed(
        self,
        batch: ChangeBatch,
        records: Records,
        before: Mapping[int, tuple[int, State]],
        values: KeyValues,
        letters: Collection[int],
        settled: Collection[int],
        done: Retried,
    ) -> set[int]:
        """Offsets of the other letters whose row has a later record that was applied, or may have one."""
        name, own = self.sink.name, zip(batch.offset.tolist(), batch.source_index.tolist(), strict=True)
        left = {offset: records.keys[place] or b"" for offset, place in own if offset not in settled}
        offsets, keys = list(left), list(left.values())
        if not left:
            return set()
        if any(begun.partition == name.partition for begun in self.ledger.open_intents(name.topic_id)):
            # It may have stored later records, and goes on behind them.
            done.failed.update(dict.fromkeys(offsets, _BEGUN))
            return set(offsets)
        # The change of an open letter is not in the table, whether it is retried now or not.
        first, failed = min(offsets) + 1, self.sink.ports.failed
        later = self.later_keys(first, {*letters, *(failed(first, _NO_END) if failed else ())})
        if later is None:
            done.failed.update(dict.fromkeys(offsets, _GONE))
            return set(offsets)
        last = last_offsets(keys, later.keys, values)
        found = {offset for offset, newest in zip(offsets, last, strict=True) if newest > offset}
        # Records without a Kafka key may be of any row.
        unclear = {offset for offset, key in zip(offsets, keys, strict=True) if offset in found and not key}
        done.failed.update(dict.fromkeys(unclear, _KEYLESS))
        done.superseded += sorted(found - unclear)
        compacted = set(later.compacted) & set(left) - found
        done.failed.update(dict.fromkeys(compacted, _COMPACTED))
        moved = self._may_have_moved(before) & set(left) - found - compacted
        done.failed.update(dict.fromkeys(moved, _MOVED))
        return found | compacted | moved

    def _may_have_moved(self, before: Mapping[int, tuple[int, State]]) -> set[int]:
        """Offsets of the letters whose row may have later records in a partition that was added since."""
        name = self.sink.name
        known = [facts for facts in self.ledger.facts(TopicFacts) if facts.topic_id == name.topic_id]
        most = max((facts.partitions for facts in known), default=0)
        former = max((facts.partitions for facts in known if facts.partitions < most), default=0)
        if name.partition >= former:
            return set()
        since = min(facts.epoch for facts in known if facts.partitions == most)
        return {offset for offset, (_, state) in before.items() if state.base_epoch < since}

    def _apply(
        self, letters: Sequence[DeadLetter], state: State, assigned: Mapping[int, tuple[int, int]], done: Retried
    ) -> None:
        records = _records(letters)
        made = self.sink.apply_again(records, state, assigned)
        failed = _reasons(made.bad, records)
        done.failed.update(failed)
        waiting = {int(records.offsets[w.index]) for w in made.pending}
        done.waiting += sorted(waiting)
        end = made.barrier.next_offset if made.barrier is not None else int(records.offsets[-1]) + 1
        for offset in records.offsets.tolist():
            if offset >= end:
                done.failed[offset] = "the table has to be changed first"
            elif offset not in waiting and offset not in failed:
                done.applied.append(offset)


def _records(letters: Sequence[DeadLetter]) -> Records:
    return Records(
        letters[0].topic,
        letters[0].partition,
        np.array([letter.offset for letter in letters], dtype=np.int64),
        np.array([letter.timestamp for letter in letters], dtype=np.int64),
        [letter.key for letter in letters],
        [letter.value for letter in letters],
        [list(letter.headers) for letter in letters],
    )


def _reasons(bad: Sequence[BadRecord], records: Records) -> dict[int, str]:
    return {int(records.offsets[b.index]): b.reason for b in bad}
