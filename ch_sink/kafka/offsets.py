"""What a topic holds: its id, partitions and watermarks; and the split of a read limit over partitions."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from ch_sink.errors import KafkaError, TopicNotFound
from ch_sink.kafka.descriptions import describe_topics
from ch_sink.kafka.failures import client_log, creating, is_transient, translate, unavailable
from ch_sink.kafka.settings import KafkaSettings
from ch_sink.model.values import TopicState

__all__ = ["TopicOffsets"]

_EARLIEST, _LATEST = -2, -1
"""Special timestamps in Kafka's API: the first offset and the high watermark."""
_Answer = TypeVar("_Answer")
_MOCK_CLUSTER = "mockCluster"
_SURROGATES = uuid.UUID("6f1c7d0e-7f0b-4c53-9b39-5a3d7a0b6c11")


class TopicOffsets:
    """Asks the broker about topics. Keeps its clients until ``close``; not for use by two threads at once."""

    def __init__(self, settings: Mapping[str, object], *, timeout: float = 20.0) -> None:
        self.settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self._timeout = timeout
        with creating(self.settings):
            self._consumer = Consumer(self.settings.for_consumer(), logger=client_log)
        # Kept: an admin client that is garbage-collected cancels its pending answers.
        self._admin: AdminClient | None = None

    def close(self) -> None:
        """Disconnect from the broker."""
        self._consumer.close()
        self._admin = None

    def state(self, topic: str) -> TopicState:
        """Id, partitions and watermarks of a topic: four calls, however many partitions.

        Raises TopicNotFound, BrokerUnavailable, KafkaError.
        """
        partitions = self.partitions(topic)
        low = self._offsets_at(topic, partitions, _EARLIEST)
        return TopicState(topic, self.topic_id(topic), low, self._offsets_at(topic, partitions, _LATEST))

    def names(self) -> frozenset[str]:
        """The names of all topics, by one call. Raises BrokerUnavailable, KafkaError."""
        metadata: ClusterMetadata = self._with_retries("", lambda: self._consumer.list_topics(timeout=self._timeout))
        return frozenset(metadata.topics)

    def partitions(self, topic: str) -> list[int]:
        """Numbers of the topic's partitions. Raises TopicNotFound, BrokerUnavailable."""
        return sorted(self._metadata(topic).topics[topic].partitions)

    def watermarks(self, topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
        """Low and high watermark by partition. Raises TopicNotFound, BrokerUnavailable."""
        low = self._offsets_at(topic, partitions, _EARLIEST)
        high = self._offsets_at(topic, partitions, _LATEST)
        return {partition: (low[partition], high[partition]) for partition in partitions}

    def at_time(self, topic: str, milliseconds: int) -> dict[int, int]:
        """The first offset of each partition whose record is not older; the high watermark if there is none.

        Raises TopicNotFound, BrokerUnavailable.
        """
        partitions = self.partitions(topic)
        asked = [TopicPartition(topic, partition, milliseconds) for partition in partitions]
        found = self._with_retries(topic, lambda: self._consumer.offsets_for_times(asked, timeout=self._timeout))
        high = self._offsets_at(topic, partitions, _LATEST)
        return {p.partition: int(p.offset) if p.offset >= 0 else high[p.partition] for p in found}

    def topic_id(self, topic: str) -> str:
        """The topic's id: it changes when a topic of the same name is recreated.

        If the broker has no topic ids (before Kafka 2.8, and librdkafka's mock cluster), a stable id derived from the
        cluster's id and the name. Raises TopicNotFound, BrokerUnavailable.
        """
        cluster = self._metadata(topic).cluster_id or ""
        surrogate = str(uuid.uuid5(_SURROGATES, f"{cluster}/{topic}"))
        if cluster.startswith(_MOCK_CLUSTER):
            # The mock cluster never answers the call below; a real broker that times out is an error, never another id.
            return surrogate
        if self._admin is None:
            with creating(self.settings):
                self._admin = AdminClient({**self.settings.for_admin()}, logger=client_log)
        try:
            description = describe_topics(self._admin, [topic], self._timeout)[topic]
        except confluent_kafka.KafkaException as error:
            raise translate(error.args[0], self.settings, topic) from error
        except TimeoutError as error:
            raise unavailable(self.settings, f"no description of topic {topic} in {self._timeout:g} seconds") from error
        if isinstance(description, confluent_kafka.KafkaException):
            raise translate(description.args[0], self.settings, topic) from description
        found = description.topic_id
        if found is None or not (found.get_most_significant_bits() or found.get_least_significant_bits()):
            return surrogate
        return str(found)

    def _metadata(self, topic: str) -> ClusterMetadata:
        metadata: ClusterMetadata = self._with_retries(
            topic, lambda: self._consumer.list_topics(topic, timeout=self._timeout)
        )
        failed = metadata.topics[topic].error
        if failed is not None:
            raise translate(failed, self.settings, topic)
        return metadata

    def _offsets_at(self, topic: str, partitions: list[int], when: int) -> dict[int, int]:
        asked = [TopicPartition(topic, partition, when) for partition in partitions]
        found = self._with_retries(topic, lambda: self._consumer.offsets_for_times(asked, timeout=self._timeout))
        if len(found) != len(partitions):
            raise TopicNotFound(
                f"topic {topic}: the broker gave offsets for {len(found)} of {len(partitions)} partitions"
            )
        for place in found:
            if place.offset < 0:
                raise KafkaError(f"topic {topic} partition {place.partition}: the broker gave no offset")
        return {place.partition: int(place.offset) for place in found}

    def _with_retries(self, topic: str, ask: Callable[[], _Answer]) -> _Answer:
        """The broker's answer; transient failures (a leader moves, a topic is new) are retried."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                answer = ask()
                failed = _first_error(answer)
            except confluent_kafka.KafkaException as error:
                failed = error.args[0]
            if failed is None:
                return answer
            if not is_transient(failed) or time.monotonic() > deadline:
                raise translate(failed, self.settings, topic)
            time.sleep(0.1)


def _first_error(answer: object) -> confluent_kafka.KafkaError | None:
    places = answer if isinstance(answer, list) else []
    return next((place.error for place in places if place.error is not None), None)
