"""Watermarks of many topics by few questions, and each topic's own answer where one is missing."""

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from ch_sink.errors import BrokerUnavailable, TopicNotFound
from ch_sink.kafka import TopicOffsets, TopicWatermarks
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.values import TopicState
from tests.support.kafka import fresh_topic, produce, values

pytestmark = pytest.mark.kafka


@pytest.fixture(params=["kafka", "mock_kafka"])
def cluster(request: pytest.FixtureRequest) -> LocalKafka:
    found: LocalKafka = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def watermarks(cluster: LocalKafka) -> Iterator[TopicWatermarks]:
    made = TopicWatermarks({"bootstrap.servers": cluster.bootstrap})
    yield made
    made.close()


def filled(kafka: LocalKafka, count: int) -> list[str]:
    """Topics of which the nth has n + 1 partitions and 3n records."""
    topics = [fresh_topic("marks") for _ in range(count)]
    for number, topic in enumerate(topics):
        kafka.create_topic(topic, number + 1)
        produce(kafka, values(topic, number, (f"{i}" for i in range(3 * number))))
    return topics


def test_each_topic_has_the_state_that_a_question_of_its_own_gives(
    cluster: LocalKafka, watermarks: TopicWatermarks
) -> None:
    topics = filled(cluster, 4)
    single = TopicOffsets({"bootstrap.servers": cluster.bootstrap})
    found = watermarks.states([*topics, "no.such.topic"])
    assert {t: found[t] for t in topics} == {t: single.state(t) for t in topics}
    assert isinstance(found["no.such.topic"], TopicNotFound)
    single.close()


def test_a_topic_that_has_not_grown_keeps_its_state_and_one_that_has_does_not(
    cluster: LocalKafka, watermarks: TopicWatermarks
) -> None:
    still, grows = filled(cluster, 2)
    first = watermarks.states([still, grows])
    produce(cluster, values(grows, 0, "abc"))
    second = watermarks.states([still, grows])
    state, before, same = second[grows], first[still], second[still]
    assert isinstance(state, TopicState)
    assert isinstance(before, TopicState)
    assert isinstance(same, TopicState)
    assert same == before
    assert same.high is before.high, "only its end was asked for"
    assert same.asked > before.asked, "it is another look"
    assert state.high == {0: 3, 1: 3}
    watermarks.close()
    assert watermarks.states([grows])[grows] == state, "a client is opened again"


def test_new_partitions_and_another_topic_of_the_name_are_seen(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ch_sink.kafka.offsets._WHOLE", 0.2)
    marks = TopicWatermarks({"bootstrap.servers": broker.bootstrap})
    wider, again = filled(broker, 2)
    first = marks.states([wider, again])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(wider, 3)])[wider].result(20)
    admin.delete_topics([again])[again].result(20)
    broker.create_topic(again, 2)
    produce(broker, values(again, 1, "abc"))  # its watermarks are those of the first one
    time.sleep(0.3)
    second = marks.states([wider, again])
    deadline = time.monotonic() + 20
    while second[wider] == first[wider] and time.monotonic() < deadline:  # the broker's own metadata take a moment
        time.sleep(0.3)
        second = marks.states([wider, again])
    before, after = first[again], second[again]
    assert isinstance(before, TopicState)
    assert isinstance(after, TopicState)
    assert (after.high, after.topic_id == before.topic_id) == (before.high, False)
    grown = second[wider]
    assert isinstance(grown, TopicState)
    assert sorted(grown.high) == [0, 1, 2]
    marks.close()


def test_threads_that_wait_share_a_question(cluster: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = filled(cluster, 5)
    marks = TopicWatermarks({"bootstrap.servers": cluster.bootstrap})
    questions: list[int] = []
    begun, go = threading.Event(), threading.Event()
    whole = TopicWatermarks._whole

    def slow(self: TopicWatermarks, wanted: list[str]) -> object:
        questions.append(len(wanted))
        begun.set()
        assert go.wait(30)
        return whole(self, wanted)

    monkeypatch.setattr(TopicWatermarks, "_whole", slow)
    found: dict[str, TopicState] = {}
    threads = [threading.Thread(target=lambda t=t: found.update({t: marks.state(t)})) for t in topics]  # type: ignore[misc]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 30
    while len(marks._wanted) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    go.set()
    for thread in threads:
        thread.join(30)
    assert questions == [1, 4]
    assert [len(found[topic].high) for topic in topics] == [1, 2, 3, 4, 5]
    with pytest.raises(TopicNotFound):
        marks.state("no.such.topic")
    marks.close()


def test_a_broker_that_is_away_is_the_answer_for_every_topic() -> None:
    marks = TopicWatermarks({"bootstrap.servers": "127.0.0.1:1"}, timeout=1.0)
    found = marks.states(["a", "b"])
    assert [type(answer) for answer in found.values()] == [BrokerUnavailable] * 2
    with pytest.raises(BrokerUnavailable):
        marks.state("a")
    marks.close()


def test_a_compacted_topic_is_known(kafka: LocalKafka) -> None:
    plain, compacted = fresh_topic("plain"), fresh_topic("compacted")
    kafka.create_topic(plain, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    made = NewTopic(compacted, 1, config={"cleanup.policy": "compact,delete"})
    admin.create_topics([made])[compacted].result()
    single = TopicOffsets({"bootstrap.servers": kafka.bootstrap})
    assert [single.is_compacted(plain), single.is_compacted(compacted)] == [False, True]
    single.close()
