"""Small ranges of many partitions, read by one assignment, hold what each of them holds when it is read alone."""

from collections.abc import Iterator

import numpy as np
import pytest
from confluent_kafka import Producer

from ch_sink.kafka import RangeConsumer, Span, slices_of
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.change import Records
from tests.support.kafka import fresh_topic, produce, values

pytestmark = pytest.mark.kafka


@pytest.fixture
def consumer(broker: LocalKafka) -> Iterator[RangeConsumer]:
    consumer = RangeConsumer({"bootstrap.servers": broker.bootstrap}, patience=10)
    yield consumer
    consumer.close()


def _alone(consumer: RangeConsumer, span: Span, *limits: int) -> list[Records]:
    return list(consumer.read(span.topic, span.partition, span.start, span.end, *limits))


def _expect_alike(found: list[Records], expected: list[Records]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
        np.testing.assert_array_equal(one.timestamps, other.timestamps)
        assert (one.topic, one.partition, one.keys, one.values) == (
            other.topic,
            other.partition,
            other.keys,
            other.values,
        )


def test_ranges_read_together_are_those_read_alone(broker: LocalKafka, consumer: RangeConsumer) -> None:
    spans = []
    for number in range(12):
        topic = fresh_topic("together")
        broker.create_topic(topic, 2)
        for partition in range(2):
            produce(broker, values(topic, partition, (f"{number}-{partition}-{i}" for i in range(40))))
            spans.append(Span(topic, partition, number, 40 - 3 * partition))
    found = consumer.together(spans, 1 << 20)
    assert found.keys() == set(spans)
    for span in spans:
        place = span.topic, span.partition
        _expect_alike(
            list(slices_of(found[span], *place, span.start, 10, 1 << 20)), _alone(consumer, span, 10, 1 << 20)
        )
        later = Span(*place, span.start + 5, span.end)
        _expect_alike(list(slices_of(found[span], *place, later.start, 50, 1 << 20)), _alone(consumer, later))


def test_ends_on_markers_and_in_aborted_transactions_are_found(broker: LocalKafka, consumer: RangeConsumer) -> None:
    topic, plain = fresh_topic("transactions"), fresh_topic()
    for name in (topic, plain):
        broker.create_topic(name, 1)
    produce(broker, values(plain, 0, "abc"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(4):  # three records and a marker each; the last ones are aborted
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, f"{number}-{i}", partition=0)
        producer.flush()
        (producer.abort_transaction if number >= 2 else producer.commit_transaction)()
    other = Span(plain, 0, 0, 3)
    for start, end in ((0, 16), (0, 4), (3, 4), (6, 10), (8, 12), (13, 16)):
        span = Span(topic, 0, start, end)
        found = consumer.together([span, other], 1 << 20)
        assert found.keys() == {span, other}, (start, end)
        _expect_alike(list(slices_of(found[span], topic, 0, start, 50, 1 << 20)), _alone(consumer, span))


def test_what_cannot_be_read_at_once_is_left_out(broker: LocalKafka, consumer: RangeConsumer) -> None:
    small, large, cut = fresh_topic(), fresh_topic(), fresh_topic()
    for topic in (small, large, cut):
        broker.create_topic(topic, 1)
    produce(broker, values(small, 0, "abc"))
    produce(broker, values(large, 0, ["x" * 200_000] * 40))
    good, missing, beyond = Span(small, 0, 0, 3), Span(fresh_topic("none"), 0, 0, 5), Span(cut, 0, 7, 9)
    found = consumer.together([good, missing, beyond], 1 << 20)
    assert found.keys() == {good}
    assert len(found[good]) == 3
    assert Span(large, 0, 0, 40) not in consumer.together([good, Span(large, 0, 0, 40)], 1 << 20)
    assert len(_alone(consumer, good)) == 1, "the consumer reads on"
