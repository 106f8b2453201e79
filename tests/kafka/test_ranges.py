"""Ranges read from a Kafka hold exactly the records of their offsets, whatever lies in between."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ch_sink.errors import BrokerUnavailable, DataLoss, TopicNotFound
from ch_sink.kafka import GroupCommits, GroupOffsets, KafkaHistory, RangeConsumer, TopicOffsets, range_consumer
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.change import Records
from tests.support.fixtures import partitions, topic_of, topics
from tests.support.kafka import fresh_topic, produce, values

pytestmark = pytest.mark.kafka


@pytest.fixture
def consumer(kafka: LocalKafka) -> Iterator[RangeConsumer]:
    consumer = RangeConsumer({"bootstrap.servers": kafka.bootstrap}, patience=10)
    yield consumer
    consumer.close()


@pytest.fixture
def offsets(kafka: LocalKafka) -> Iterator[TopicOffsets]:
    offsets = TopicOffsets({"bootstrap.servers": kafka.bootstrap})
    yield offsets
    offsets.close()


def _texts(slices: list[Records]) -> list[str]:
    return [(value or b"").decode() for records in slices for value in records.values]


def _offsets(slices: list[Records]) -> list[int]:
    return [int(offset) for records in slices for offset in records.offsets]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", ["postgres-json_schema-kc", "mariadb-busy-json_plain"])
def test_a_recorded_topic_comes_back_as_it_was_recorded(
    kafka: LocalKafka, consumer: RangeConsumer, stream: str
) -> None:
    table = "acct" if "busy" in stream else "kc"
    source = topic_of(stream, table)
    topic = fresh_topic("recorded")
    kafka.create_topic(topic, 3)
    produce(kafka, topics(stream)[source], topic)
    for partition, expected in partitions(stream, source).items():
        slices = list(consumer.read(topic, partition, 0, len(expected)))
        assert len(slices) == 1
        [read] = slices
        assert (read.topic, read.partition) == (topic, partition)
        np.testing.assert_array_equal(read.offsets, expected.offsets)
        np.testing.assert_array_equal(read.timestamps, expected.timestamps)
        assert read.keys == expected.keys
        assert read.values == expected.values
        assert read.headers == expected.headers


def test_slices_are_cut_at_absolute_multiples(kafka: LocalKafka, consumer: RangeConsumer) -> None:
    topic = fresh_topic()
    kafka.create_topic(topic, 1)
    produce(kafka, values(topic, 0, (f"{i}" for i in range(2500))))
    slices = list(consumer.read(topic, 0, 130, 2421, max_records=500))
    assert [(int(part.offsets[0]), int(part.offsets[-1])) for part in slices] == [
        (130, 499),
        (500, 999),
        (1000, 1499),
        (1500, 1999),
        (2000, 2420),
    ]
    assert _texts(slices) == [f"{i}" for i in range(130, 2421)]
    assert all(part.headers is None for part in slices)


class Polls:
    """A consumer that notes how many records each poll asked for, and got."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.seen: list[tuple[int, int]] = []

    def consume(self, count: int, timeout: float) -> list[Any]:
        got: list[Any] = self.consumer.consume(count, timeout)
        self.seen.append((count, len(got)))
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)


def test_a_range_at_the_end_of_the_topic_does_not_wait(
    kafka: LocalKafka, consumer: RangeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll waits for all that it asks for: no poll asks for more than there is, or follows the last record."""
    topic = fresh_topic()
    kafka.create_topic(topic, 1)
    produce(kafka, values(topic, 0, (f"{i}" for i in range(20))))
    polls = Polls(consumer._consumer)
    monkeypatch.setattr(consumer, "_consumer", polls)
    for start in range(20):
        polls.seen.clear()
        assert _offsets(list(consumer.read(topic, 0, start, 20))) == list(range(start, 20))
        left = 20 - start
        for asked, got in polls.seen:
            assert asked == left
            left -= got
        assert left == 0
        assert polls.seen[-1][1] > 0


def test_headers_are_none_only_where_a_slice_has_none(kafka: LocalKafka, consumer: RangeConsumer) -> None:
    topic = fresh_topic()
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(6):
        headers = [("a", b"1"), ("b", None)] if number == 4 else None
        producer.produce(topic, value=b"%d" % number, partition=0, headers=headers)
    producer.flush()
    without, mixed = consumer.read(topic, 0, 0, 6, max_records=3)
    assert without.headers is None
    assert mixed.headers == [None, [("a", b"1"), ("b", None)], None]
    assert without.keys == [None, None, None]


def test_transactions_leave_markers_and_the_aborted_records_out(
    broker: LocalKafka, consumer: RangeConsumer, offsets: TopicOffsets
) -> None:
    topic = fresh_topic("tx")
    broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(8):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, value=f"{number}.{part}".encode(), partition=0)
        producer.flush()
        (producer.abort_transaction if number % 4 == 3 else producer.commit_transaction)()
    expected = {number * 4 + part: f"{number}.{part}" for number in range(8) for part in range(3) if number % 4 != 3}
    _await_high(offsets, topic, 32)
    # Ends on a marker, within an aborted transaction, on its marker, in the middle of a committed one.
    for start, end in [
        (0, 32),
        (0, 4),
        (0, 13),
        (0, 14),
        (0, 16),
        (3, 4),
        (12, 16),
        (13, 14),
        (15, 16),
        (5, 18),
        (31, 32),
    ]:
        begin = time.monotonic()
        slices = list(consumer.read(topic, 0, start, end))
        assert _offsets(slices) == [offset for offset in expected if start <= offset < end], (start, end)
        assert _texts(slices) == [expected[offset] for offset in expected if start <= offset < end]
        assert time.monotonic() - begin < consumer.patience / 2, (start, end)

    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    producer.flush()
    assert offsets.state(topic).high == {0: 32}, "an open transaction is not there yet"
    producer.commit_transaction()
    _await_high(offsets, topic, 34)


def _await_high(offsets: TopicOffsets, topic: str, high: int) -> None:
    """Wait for it: the broker answers a commit once it is decided and writes the markers after that."""
    deadline = time.monotonic() + 30
    while offsets.state(topic).high != {0: high} and time.monotonic() < deadline:
        time.sleep(0.02)
    assert offsets.state(topic).high == {0: high}


@pytest.mark.long
def test_compacted_offsets_are_gaps(broker: LocalKafka, consumer: RangeConsumer) -> None:
    topic = fresh_topic("compacted")
    compact = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    broker.create_topic(topic, 1, {**compact, "max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(topic, key=b"%d" % (number % 7), value=b"%d" % number, partition=0)
    producer.flush()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.3)
        # A segment is rolled, and so becomes cleanable, by the next record only.
        producer.produce(topic, key=b"roll", value=b"roll", partition=0)
        producer.flush()
        kept = _offsets(list(consumer.read(topic, 0, 0, 100)))
        if len(kept) < 100:
            break
    assert kept == list(range(93, 100)), "the last record of each key is left"
    assert list(consumer.read(topic, 0, 10, 60)) == []
    assert _offsets(list(consumer.read(topic, 0, 10, 95))) == [93, 94]
    history = KafkaHistory(consumer, topic, 0)
    assert history.before(98, 3).offsets.tolist() == [95, 96, 97]
    assert history.before(95, 10).offsets.tolist() == [93, 94]


def test_removed_offsets_are_a_loud_loss_with_the_figures(broker: LocalKafka, consumer: RangeConsumer) -> None:
    topic = fresh_topic("lost")
    broker.create_topic(topic, 1)
    produce(broker, values(topic, 0, (f"{i}" for i in range(50))))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 30)]).values():
        future.result(20)
    with pytest.raises(DataLoss, match=r"offset 10 is the next to be read, but the topic holds 30 to 49"):
        list(consumer.read(topic, 0, 10, 50))
    assert _offsets(list(consumer.read(topic, 0, 30, 50))) == list(range(30, 50))
    with pytest.raises(DataLoss, match="holds 30 to 49") as caught:
        list(consumer.read(topic, 0, 60, 70))
    assert "run the command again" in str(caught.value.hint)


def test_a_range_past_the_end_is_a_loss_and_not_a_wait_for_ever(kafka: LocalKafka) -> None:
    topic = fresh_topic()
    kafka.create_topic(topic, 1)
    produce(kafka, values(topic, 0, (f"{i}" for i in range(5))))
    consumer = RangeConsumer({"bootstrap.servers": kafka.bootstrap}, patience=1)
    with pytest.raises(DataLoss, match="holds 0 to 4"):
        list(consumer.read(topic, 0, 0, 9))
    consumer.close()


def test_an_unknown_topic_is_named(consumer: RangeConsumer, offsets: TopicOffsets) -> None:
    for ask in (lambda: list(consumer.read("no.such.topic", 0, 0, 1)), lambda: offsets.state("no.such.topic")):
        with pytest.raises(TopicNotFound, match=r"no\.such\.topic"):
            ask()


@pytest.mark.long
def test_no_broker_is_said_in_time_and_without_secrets() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:9", "sasl.password": "hunter2"}
    consumer = RangeConsumer(settings, patience=1)
    offsets = TopicOffsets(settings, timeout=2)
    for ask in (lambda: list(consumer.read("t", 0, 0, 1)), lambda: offsets.state("t")):
        begin = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9") as raised:
            ask()
        assert time.monotonic() - begin < 15
        assert "hunter2" not in repr(raised.value) + str(raised.value.hint)
    commits = GroupCommits(settings, timeout=1)
    GroupOffsets(commits, "g").commit("t", {0: 1})
    assert commits.flush() is False
    commits.close()


def test_the_first_range_of_each_of_many_topics_does_not_wait_for_its_leader(kafka: LocalKafka) -> None:
    """The client looks for the leaders of new topics once a second, so that most waits would be most of a second."""
    topics = [fresh_topic("many") for _ in range(8)]
    for topic in topics:
        kafka.create_topic(topic, 1)
        produce(kafka, values(topic, 0, "abcde"))
    reader = RangeConsumer({"bootstrap.servers": kafka.bootstrap})
    waited: list[float] = []
    for topic in topics:
        began = time.monotonic()
        assert _offsets(list(reader.read(topic, 0, 1, 4))) == [1, 2, 3]
        waited.append(time.monotonic() - began)
    reader.close()
    assert sorted(waited[1:])[len(waited) // 2] < 0.4, waited


@pytest.mark.long
def test_a_broker_that_comes_back_is_read_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LocalKafka() as own:
        if own.kind != "kafka":
            pytest.skip(f"needs a real broker: {own.why}")
        topic = fresh_topic()
        own.create_topic(topic, 1)
        produce(own, values(topic, 0, (f"{i}" for i in range(10))))
        consumer = RangeConsumer({"bootstrap.servers": own.bootstrap}, patience=40)
        assert _offsets(list(consumer.read(topic, 0, 0, 5))) == list(range(5))
        own.halt()
        own.start()
        assert _offsets(list(consumer.read(topic, 0, 5, 10))) == list(range(5, 10))
        consumer.close()


def test_a_topic_made_anew_has_another_id(broker: LocalKafka, offsets: TopicOffsets) -> None:
    topic = fresh_topic("again")
    broker.create_topic(topic, 2)
    first = offsets.state(topic)
    assert offsets.state(topic) == first
    assert (first.low, first.high) == ({0: 0, 1: 0}, {0: 0, 1: 0})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    broker.create_topic(topic, 2)
    assert offsets.state(topic).topic_id != first.topic_id


def test_group_offsets_are_what_lag_tools_read(kafka: LocalKafka) -> None:
    topic = fresh_topic()
    kafka.create_topic(topic, 2)
    produce(kafka, values(topic, 0, "abc"))
    groups = [fresh_topic("group") for _ in range(3)]
    commits = GroupCommits({"bootstrap.servers": kafka.bootstrap}, every=0.01)
    for number, group in enumerate(groups):
        GroupOffsets(commits, group).commit(topic, {0: 1})
        GroupOffsets(commits, group).commit(topic, {0: 3, 1: number})
    commits.close()
    for number, group in enumerate(groups):
        reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
        committed = reader.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
        assert [place.offset for place in committed] == [3, number]
        reader.close()
    assert commits.flush() is True, "nothing is left"


def test_the_offsets_committed_before_are_a_witness(kafka: LocalKafka) -> None:
    topic, group = fresh_topic(), fresh_topic("group")
    kafka.create_topic(topic, 2)
    commits = GroupCommits({"bootstrap.servers": kafka.bootstrap}, every=0.01)
    mine = GroupOffsets(commits, group)
    assert mine.last_committed(topic, [0, 1]) == {}
    mine.commit(topic, {1: 7})
    assert commits.flush()
    assert mine.last_committed(topic, [0, 1]) == {1: 7}
    found: list[dict[int, int]] = []
    mine.before_commit(topic, [0, 1], found.append)
    mine.commit(topic, {0: 3, 1: 9})
    commits.close()
    assert found == [{1: 7}]
    assert mine.last_committed(topic, [0, 1]) == {0: 3, 1: 9}


def test_the_mock_cluster_serves_the_same_calls(mock_kafka: LocalKafka) -> None:
    topic = fresh_topic()
    mock_kafka.create_topic(topic, 5)
    produce(mock_kafka, values(topic, 4, (f"{i}" for i in range(10))))
    offsets = TopicOffsets({"bootstrap.servers": mock_kafka.bootstrap})
    state = offsets.state(topic)
    assert state.high == {0: 0, 1: 0, 2: 0, 3: 0, 4: 10}
    assert offsets.topic_id(topic) == state.topic_id
    settings = {"bootstrap.servers": mock_kafka.bootstrap}
    with range_consumer(settings) as consumer, range_consumer(settings) as other:
        assert other is not consumer
        assert _texts(list(consumer.read(topic, 4, 3, 8))) == ["3", "4", "5", "6", "7"]
        assert KafkaHistory(consumer, topic, 4).before(6, 2).values == [b"4", b"5"]
    with range_consumer(settings) as again:
        assert again in (consumer, other)
    offsets.close()
