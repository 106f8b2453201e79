"""Dead letters of a configured stream: kept in its table, retried over real Kafka and ClickHouse."""

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseLedger
from ch_sink.config import Config
from ch_sink.discovery.wiring import dead_letters_of, kafka_settings
from ch_sink.kafka import RangeConsumer
from ch_sink.ports import Claim, DeadLetter, StoredLetter
from ch_sink.stream.letter_retry import LetterRetry, Retried
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.wiring.streams import SharedTopics, stream_ports
from ch_sink.wiring.tasks import batch_decoder, task_ports

_ALL = 1 << 40
_AT_ONCE = 500
"""How many letters are planned together."""
_UNKNOWN = (
    "the ledger does not know the topic, so the order of this change is unknown: retry when the job has read the topic"
)


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
        counts = [self._table(topic_id).count() for topic_id in self._table("").topic_ids()]
        return sum(n for found in counts for name, n in found.items() if kind in (None, name))

    def drop(self, letters: Mapping[str, Collection[DeadLetter]]) -> None:
        """Mark letters as dropped; their records stay in the table. Raises ClickHouseError."""
        for topic_id, chosen in letters.items():
            self._table(topic_id).settle([(letter.partition, letter.offset) for letter in chosen], "dropped")

    def retry(self, letters: Mapping[str, Collection[DeadLetter]]) -> dict[tuple[str, int], Retried]:
        """Apply letters in order, by (topic id, partition), and note what became of them.

        Raises LedgerConflict if a job has the stream; ClickHouseError, KafkaError.
        """
        ledger = self.ports.ledger
        claim = ledger.claim(f"dead-letters-{uuid.uuid4().hex[:12]}")
        try:
            done: dict[tuple[str, int], Retried] = {}
            for topic_id, chosen in letters.items():
                for partition in sorted({letter.partition for letter in chosen}):
                    mine = sorted((x for x in chosen if x.partition == partition), key=lambda x: x.offset)
                    done[topic_id, partition] = self._retry(claim, topic_id, partition, mine)
            return done
        finally:
            ledger.release()

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
            some = [self._whole(letter) for letter in letters[first : first + _AT_ONCE]]
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

    def _whole(self, letter: DeadLetter) -> DeadLetter:
        """The letter; its value from Kafka if it was withheld from the table."""
        if not self.config.policy().columns.hides or letter.value != b"":
            return letter
        with closing(RangeConsumer(kafka_settings(self.config))) as consumer:
            for records in consumer.read(letter.topic, letter.partition, letter.offset, letter.offset + 1):
                headers = records.headers[0] if records.headers is not None else ()
                return replace(letter, key=records.keys[0], value=records.values[0], headers=headers or ())
        return letter

    def _table(self, topic_id: str) -> ClickHouseDeadLetters:
        ledger = self.ports.ledger
        assert isinstance(ledger, ClickHouseLedger)
        return dead_letters_of(self.config, ledger.table.client, topic_id)
