"""The local Kafka of the tests, and the way recorded records get into it."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Literal

import pytest
from confluent_kafka import KafkaError, Message, Producer

from ch_sink.kafka import TopicOffsets
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import Recorded
from tests.support.hand import Event

_numbers = itertools.count()


def fresh_topic(stem: str = "t") -> str:
    """A topic name that no other test of this run uses."""
    return f"{stem}.{os.getpid()}.{next(_numbers)}"


def produce(kafka: LocalKafka, records: Iterable[Recorded], topic: str | None = None) -> int:
    """Produce records as they were recorded: partition, key, headers, time, and order within each partition.

    ``topic`` replaces the recorded topic names. In a fresh topic the offsets equal the recorded ones. Returns the
    number of records. Raises AssertionError when the broker took fewer.
    """
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "max.in.flight": 1})
    refused: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error.str())

    count = 0
    for record in records:
        while True:
            try:
                producer.produce(
                    topic or record.topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp=record.timestamp,
                    headers=list(record.headers) or None,
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
        count += 1
    left = producer.flush(60)
    assert not refused, f"{len(refused)} records refused: {refused[0]}"
    assert not left, f"{left} records were not sent within a minute"
    return count


def values(topic: str, partition: int, texts: Iterable[str], *, first_offset: int = 0) -> list[Recorded]:
    """Small records with key ``k`` and these values, at times one second apart."""
    return [
        Recorded(topic, partition, offset, 1_700_000_000_000 + offset * 1000, b"k", text.encode(), ())
        for offset, text in enumerate(texts, start=first_offset)
    ]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients give up on a broker that does not answer after two seconds."""
    monkeypatch.setitem(TopicOffsets.__init__.__kwdefaults__, "timeout", 2.0)


def _run(kind: Literal["auto", "kafka", "mock"]) -> Iterator[LocalKafka]:
    with LocalKafka(kind=kind) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """The run's local Kafka: a real broker if one can start, else the mock cluster."""
    yield from _run("auto")


@pytest.fixture(scope="session")
def mock_kafka() -> Iterator[LocalKafka]:
    """librdkafka's mock cluster, whatever else this machine has."""
    yield from _run("mock")


@pytest.fixture(scope="session")
def broker(kafka: LocalKafka) -> LocalKafka:
    """The run's local Kafka if it is a real broker; else the test is skipped, with the reason."""
    if kafka.kind != "kafka":
        pytest.skip(f"needs a real broker: {kafka.why}")
    return kafka


def recorded(topic: str, events: list[Event]) -> list[Recorded]:
    return [
        Recorded(topic, 0, i, 1_700_000_000_000 + i, json.dumps(e.key).encode(), json.dumps(e.value).encode(), ())
        for i, e in enumerate(events)
    ]
