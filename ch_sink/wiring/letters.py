"""Dead letters of a configured stream: kept in its table, and applied after all, over real Kafka and ClickHouse.

They are retried in order, each in the place that it had among the changes. A letter gets the version that its change
would have had when it was read: the epoch of its time and its own commit position. So a newer row wins over it, also
one that is stored while the retry runs, and later changes win over it. Where versions do not decide that, the letter
stays open: the source knows the row (`ch_sink repair --key`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseLedger
from ch_sink.config import Config
from ch_sink.discovery.wiring import dead_letters_of, kafka_settings, states_by_ledger
from ch_sink.errors import DataLoss
from ch_sink.kafka import RangeConsumer
from ch_sink.model.change import BadRecord, ChangeBatch, Half, Records
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int, to_ints
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.plan import in_given_order
from ch_sink.ports import Claim, DeadLetter, Ledger, RowsEdited, StoredLetter, TableRefilled
from ch_sink.sources import source_for
from ch_sink.stream.batch_plan import other_topic
from ch_sink.stream.claims import expect_same_terms
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.standing import held
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.table.model import Family
from ch_sink.wiring.streams import SharedTopics, stream_ports
from ch_sink.wiring.tasks import batch_decoder, task_ports

F = TypeVar("F", RowsEdited, TableRefilled)

_NEXT = (
    "repair the row from its source (`ch_sink repair CONFIG --key KEY --apply`; without --key if it has none), "
    "then drop the letter (`ch_sink dead-letters drop CONFIG --at PARTITION:OFFSET`)"
)
_UNORDERED = f"versions in the table do not show whether a newer change of the row is stored: {_NEXT}"
_SINCE = f"the table was {{}} after this change, and has no trace of rows deleted by then: {_NEXT}"
_OTHERWISE = f"later changes of the topic have versions of another kind, which do not compare: {_NEXT}"
_LEFT = (
    "the row is deleted in the table, by its own delete or by that of the row which had its key before (keys "
    f"swapped in one transaction): {_NEXT}"
)
_GONE = f"its value was withheld from the table, and Kafka does not have it any more: {_NEXT}"
_ALL = 1 << 40
_AT_ONCE = 500
"""How many letters are planned together."""
_UNKNOWN = (
    "the ledger does not know the topic, so the order of this change is unknown: retry when the job has read the topic"
)


@dataclass(slots=True)
class Retried:
    """The results of a retry, by offset."""

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

    def run(self, letters: Sequence[DeadLetter]) -> Retried:
        """Apply letters of one partition, by offset. Raises ChSinkError; what was applied by then stays applied."""
        done = Retried()
        queue = self._ordered(sorted(letters, key=lambda letter: letter.offset), done)
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
            if self._ordered_otherwise(batch, before):
                done.failed.update(dict.fromkeys(records.offsets.tolist(), _OTHERWISE))
                return done
            assigned = self._assigned(batch, before)
            settled = self._settled(batch, in_given_order(batch, self.sink.target, known, assigned), done)
            if rest := [letter for letter in queue if letter.offset not in settled]:
                self._apply(rest, known, assigned, done)
            return done
        return done

    def _ordered(self, letters: list[DeadLetter], done: Retried) -> list[DeadLetter]:
        """The letters whose versions decide between them and the rows; the others are settled, or stay open.

        Rows that were loaded since show what came before, and so do those of a table that was filled from a topic that
        was recreated since.
        """
        target = self.sink.target
        engine = target.table.engine
        if engine.family is not Family.REPLACING or target.system.version is None or target.layout.kind == "time":
            done.failed.update({letter.offset: _UNORDERED for letter in letters})
            return []
        loads, former = self._facts(TableRefilled), other_topic(self.ledger, self.sink.name.topic_id)
        shown = {x.offset for x in letters if former or any(load.shows(x.offset, x.timestamp) for load in loads)}
        done.superseded += sorted(shown)
        filled = max((load.offset for load in loads), default=0)
        edits, repaired = self._facts(RowsEdited), self._repaired_up_to()
        erased = max((edit.offset for edit in edits if edit.act == "removed" and edit.left), default=0)
        for letter in letters:
            # Without a key nothing says that a letter is not of the row that was erased.
            purged = erased if letter.key is None else 0
            for what, end in (("filled again", filled), ("purged", purged), ("repaired", repaired)):
                if letter.offset < end and letter.offset not in shown:
                    done.failed.setdefault(letter.offset, _SINCE.format(what))
        return [letter for letter in letters if letter.offset not in shown and letter.offset not in done.failed]

    def _without_unknown_columns(self, batch: ChangeBatch, done: Retried) -> set[int]:
        """Offsets of the events that need no column that the table lacks."""
        offsets = set(batch.offset.tolist())
        ignored = self.sink.target.policy.changes.evolve == "ignore"
        for column in batch.unknown:
            if ignored and not column.retyped:
                continue
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
        name = self.sink.name
        steps = [s for s in self.ledger.steps(name.topic_id, name.partition) if s.kind != "redelivery"]
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

    def _settled(self, batch: ChangeBatch, order: Sequenced, done: Retried) -> set[int]:
        """Offsets of the letters that need not be applied, or cannot be.

        Their change, or a newer one of the row, is stored, or may have been until a purge.
        """
        target, lookup = self.sink.target, self.sink.ports.lookup
        settled = set(batch.offset[~order.keep].tolist())  # a truncate came after them, or rows that show them
        done.superseded += sorted(settled)
        if batch.key is None or lookup is None or target.system.version is None:
            return settled
        purged = max((int(edit.top) for edit in self._facts(RowsEdited) if edit.act == "removed"), default=-1)
        versions = to_ints(order.version)
        swaps = source_for(batch.connector).deferrable
        for i, offset in enumerate(batch.offset.tolist()):
            if offset in settled:
                continue
            stored = lookup.fetch(batch.key.slice(i, 1)).rows
            held = to_ints(target.layout.from_arrow(stored.column(target.system.version)))
            if versions[i] in held:
                done.applied.append(offset)
            elif any(version > versions[i] for version in held):
                newest, mark = held.index(max(held)), target.deleted
                gone = mark is not None and stored.column(mark[0])[newest].as_py() == mark[1]
                if swaps and gone and batch.half[i] == Half.CREATE:
                    done.failed[offset] = _LEFT
                else:
                    done.superseded.append(offset)
            elif versions[i] <= purged:
                done.failed[offset] = _SINCE.format("purged")
            else:
                continue
            settled.add(offset)
        return settled

    def _repaired_up_to(self) -> int:
        """The offset below which changes of the partition came before the last repair, 0 if there is none."""
        name, fillings = self.sink.name, len(self.ledger.facts(TableRefilled))
        # A filling since then makes a repair void.
        repairs = [edit for edit in self.ledger.facts(RowsEdited) if edit.act == "repaired"]
        mine = name.topic_id, name.partition
        standing = [one for one in repairs if one.since >= fillings and (one.topic_id, one.partition) == mine]
        return max((repair.offset for repair in standing), default=0)

    def _ordered_otherwise(self, batch: ChangeBatch, before: Mapping[int, tuple[int, State]]) -> bool:
        """Whether changes got versions by another strategy when the letters were read than now."""
        strategy = self.sink.target.strategy(source_for(batch.connector) if batch.connector else None)
        states = [self.state, *(state for _, state in before.values())]
        return not {state.strategy for state in states} <= {"", strategy}

    def _facts(self, kind: type[F]) -> list[F]:
        """The ledger's facts about the partition."""
        name = self.sink.name
        return [
            fact
            for fact in self.ledger.facts(kind)
            if (fact.topic_id, fact.partition) == (name.topic_id, name.partition)
        ]

    def _apply(
        self, letters: Sequence[DeadLetter], state: State, assigned: Mapping[int, tuple[int, int]], done: Retried
    ) -> None:
        records = _records(letters)
        made = self.sink.apply_again(records, state, assigned)
        failed = _reasons(made.bad, records)
        done.failed.update(failed)
        waiting = {int(records.offsets[w.index]) for w in made.pending}
        done.waiting += sorted(waiting)
        for offset in records.offsets.tolist():
            if made.barrier is not None:
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


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of one stream, of all topics that it has read."""

    config: Config
    ports: StreamPorts

    @staticmethod
    @contextmanager
    def of(config: Config) -> "Iterator[Letters]":
        """Connect. Raises ClickHouseError."""
        with closing(SharedTopics()) as topics:
            yield Letters(config, stream_ports(config, topics))

    def open(self, *, whole: bool = True) -> dict[str, Sequence[StoredLetter]]:
        """All letters that are not settled, by topic id; ``whole``: with their records. Raises ClickHouseError."""
        found = {topic_id: self._table(topic_id).list(_ALL, whole=whole) for topic_id in self._table("").topic_ids()}
        return {topic_id: letters for topic_id, letters in found.items() if letters}

    def newest(self, limit: int, kind: str | None = None, *, whole: bool) -> Sequence[StoredLetter]:
        """The newest letters that are not settled; ``whole``: with their records. Raises ClickHouseError."""
        return self._table("").newest(limit, kind, whole=whole)

    def count(self, kind: str | None = None) -> int:
        """How many letters are not settled. Raises ClickHouseError."""
        return sum(n for name, n in self._table("").count().items() if kind in (None, name))

    def drop(self, letters: Mapping[str, Collection[DeadLetter]]) -> None:
        """Mark letters as dropped; their records stay in the table. Raises ClickHouseError."""
        for topic_id, chosen in letters.items():
            self._table(topic_id).settle([(letter.partition, letter.offset) for letter in chosen], "dropped")

    def retry(
        self, letters: Mapping[str, Collection[DeadLetter]], check: Callable[[], None] = lambda: None
    ) -> dict[tuple[str, int], Retried]:
        """Apply letters in order, by (topic id, partition), and note what became of them; ``check`` may end it.

        The stream stands still meanwhile. Raises StreamFailed if it does not, or if the columns are filled otherwise by
        now; ClickHouseError, KafkaError.
        """
        if not any(letters.values()):
            return {}
        ledger = self.ports.ledger
        config, table = self.config, self.ports.table.detect()
        expect_same_terms(config.stream_name, ledger, table, config.policy(), config.source_table)
        [(states, _)] = states_by_ledger([config])
        done: dict[tuple[str, int], Retried] = {}
        with held(ledger, states, "dead-letters retry", check=check) as claim:
            for topic_id, chosen in letters.items():
                for partition in sorted({letter.partition for letter in chosen}):
                    check()
                    mine = sorted((x for x in chosen if x.partition == partition), key=lambda x: x.offset)
                    done[topic_id, partition] = self._retry(claim, topic_id, partition, mine)
        return done

    def _retry(self, claim: Claim, topic_id: str, partition: int, letters: list[DeadLetter]) -> Retried:
        ledger = self.ports.ledger
        if topic_id not in ledger.topic_ids():
            # The job that reads the topic next begins above every epoch of the table; nobody else may note one.
            return Retried(failed={letter.offset: _UNKNOWN for letter in letters})
        table = self.ports.table.carry_out(self.ports.table.detect(), (), ())  # its views follow it
        reached = ledger.progress(topic_id).get(partition, 0)
        state = States(ledger, topic_id, 0, None).at(partition, reached)
        everything = Retried()
        for first in range(0, len(letters), _AT_ONCE):
            whole = {letter.offset: self._whole(letter) for letter in letters[first : first + _AT_ONCE]}
            some = [letter for letter in whole.values() if letter is not None]
            everything.failed.update({offset: _GONE for offset, letter in whole.items() if letter is None})
            task = ReleaseTask(
                self.config.stream_name, letters[0].topic, topic_id, partition, table, state, claim=claim
            )
            retry = LetterRetry(
                task_ports(self.config, task, lambda now, before: batch_decoder(self.config, now, before)).sink,
                ledger,
                state,
            )
            done = retry.run(some)
            for outcome, offsets in (
                ("applied", done.applied),
                ("superseded", done.superseded),
                ("waiting", done.waiting),
            ):
                self._table(topic_id).settle([(partition, offset) for offset in offsets], outcome)
                getattr(everything, outcome).extend(offsets)
            everything.failed.update(done.failed)
        return everything

    def _whole(self, letter: DeadLetter) -> DeadLetter | None:
        """The letter; its value from Kafka if it was withheld from the table, None if that has no value there."""
        if letter.value != b"":
            return letter
        with closing(RangeConsumer(kafka_settings(self.config))) as consumer, suppress(DataLoss):
            for records in consumer.read(letter.topic, letter.partition, letter.offset, letter.offset + 1):
                headers = records.headers[0] if records.headers is not None else ()
                return replace(letter, key=records.keys[0], value=records.values[0], headers=headers or ())
        return None

    def _table(self, topic_id: str) -> ClickHouseDeadLetters:
        ledger = self.ports.ledger
        assert isinstance(ledger, ClickHouseLedger)
        return dead_letters_of(self.config, ledger.table.client, topic_id)
