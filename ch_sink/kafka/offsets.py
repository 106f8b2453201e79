"""Questions to brokers about topics: partitions, offsets and watermarks, of many topics by few questions.

Only the broker that the client takes for the controller describes topics.
"""

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource  # type: ignore[attr-defined]

from ch_sink.errors import ChSinkError, KafkaError, TopicNotFound
from ch_sink.kafka.settings import (
    KafkaSettings,
    client_log,
    creating,
    is_transient,
    is_unreachable,
    translate,
    unavailable,
)
from ch_sink.model.values import TopicState

_FIRST = 0.25
"""Share of the time after which the client looks up the controller again."""
_LEAST = 1.0
"""Seconds that the broker has at least."""


def describe_topics(
    admin: AdminClient, topics: Sequence[str], timeout: float
) -> Mapping[str, Any | confluent_kafka.KafkaException]:
    """Topic → its ``TopicDescription``, or why there is none, in ``timeout`` seconds at most.

    An admin client keeps to the controller that it has learned of, and learns of another one only by metadata that
    somebody asks for. While that broker is down, it would wait for it however many others are up.

    Raises KafkaException, TimeoutError if no broker answers.
    """
    try:
        return _described(admin, topics, max(_LEAST, _FIRST * timeout))
    except (confluent_kafka.KafkaException, TimeoutError):
        with suppress(confluent_kafka.KafkaException):
            admin.list_topics(topics[0], timeout=max(_LEAST, _FIRST * timeout))
        return _described(admin, topics, max(_LEAST, (1 - 2 * _FIRST) * timeout))


def _described(
    admin: AdminClient, topics: Sequence[str], timeout: float
) -> dict[str, Any | confluent_kafka.KafkaException]:
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
    found: dict[str, Any | confluent_kafka.KafkaException] = {}
    for topic, answer in answers.items():
        try:
            found[topic] = answer.result(timeout + 5)
        except confluent_kafka.KafkaException as error:
            if is_unreachable(error.args[0]):
                raise
            found[topic] = error
    return found


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
        try:
            description = describe_topics(self._administration(), [topic], self._timeout)[topic]
        except confluent_kafka.KafkaException as error:
            raise translate(error.args[0], self.settings, topic) from error
        except TimeoutError as error:
            raise unavailable(self.settings, f"no description of topic {topic} in {self._timeout:g} seconds") from error
        if isinstance(description, confluent_kafka.KafkaException):
            raise translate(description.args[0], self.settings, topic) from description
        return _id_of(description) or surrogate

    def is_compacted(self, topic: str) -> bool:
        """Whether Kafka removes older records of a key; False if this user may not know. Raises BrokerUnavailable."""
        if (self._metadata(topic).cluster_id or "").startswith(_MOCK_CLUSTER):
            return False
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        [answer] = self._administration().describe_configs([asked], request_timeout=self._timeout).values()
        try:
            policy = answer.result(self._timeout + 5)["cleanup.policy"].value
        except (confluent_kafka.KafkaException, TimeoutError):
            return False
        return "compact" in policy

    def _administration(self) -> AdminClient:
        if self._admin is None:
            with creating(self.settings):
                self._admin = AdminClient({**self.settings.for_admin()}, logger=client_log)
        return self._admin

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


def _id_of(description: Any) -> str:
    """The topic's id, empty if the broker has none."""
    own = description.topic_id
    return str(own) if own is not None and (own.get_most_significant_bits() or own.get_least_significant_bits()) else ""


def _first_error(answer: object) -> confluent_kafka.KafkaError | None:
    places = answer if isinstance(answer, list) else []
    return next((place.error for place in places if place.error is not None), None)


_WHOLE = 10.0
"""Seconds after which a topic that does not grow is looked at whole: it may have new partitions, or be another one."""

_Places = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset."""


class TopicWatermarks:
    """Asks one cluster about many topics. May be used by several threads; keeps its clients until ``close``."""

    def __init__(self, settings: Mapping[str, object], *, timeout: float = 20.0) -> None:
        self.settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._single: TopicOffsets | None = None
        self._is_mock: bool | None = None
        self._known: dict[str, tuple[float, TopicState]] = {}
        self._wanting = threading.Lock()
        self._wanted: set[str] = set()
        """Topics that threads wait for in `state`."""
        self._answers: dict[str, tuple[float, TopicState | ChSinkError]] = {}

    def close(self) -> None:
        """Disconnect; the next question opens clients again."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
            if self._single is not None:
                self._single.close()
            self._consumer = self._admin = self._single = None

    def state(self, topic: str) -> TopicState:
        """A topic's state. Threads that wait for one another share a question. Raises KafkaError."""
        asked = time.monotonic()
        with self._wanting:
            self._wanted.add(topic)
        with self._lock:
            at, answer = self._answers.get(topic, (-math.inf, None))
            if answer is None or at < asked:
                with self._wanting:
                    wanted, self._wanted = sorted(self._wanted | {topic}), set()
                at = time.monotonic()
                found = self._guarded(wanted, lambda: self._whole(wanted))
                self._answers |= {name: (at, state) for name, state in found.items()}
                answer = found[topic]
        if isinstance(answer, TopicState):
            return answer
        raise answer

    def states(self, topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        """Each topic's state, or why it is not known.

        A topic whose high watermarks have not moved keeps its state for some seconds; only the others are asked for
        their ids, partitions and lowest offsets.
        """
        with self._lock:
            return self._guarded(topics, lambda: self._all(topics))

    def _all(self, topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        still = self._unmoved(topics)
        return {**still, **self._whole([topic for topic in topics if topic not in still])}

    def _guarded(
        self, topics: Sequence[str], ask: Callable[[], dict[str, TopicState | ChSinkError]]
    ) -> dict[str, TopicState | ChSinkError]:
        """The answers; if the broker itself does not answer, that for all topics."""
        try:
            return ask()
        except confluent_kafka.KafkaException as error:
            failed = translate(error.args[0], self.settings, topics[0])
        except TimeoutError:
            failed = unavailable(self.settings, f"no description of topics in {self._timeout:g} seconds")
        return dict.fromkeys(topics, failed)

    def _unmoved(self, topics: Sequence[str]) -> dict[str, TopicState]:
        oldest = time.monotonic() - _WHOLE
        known = {t: self._known[t][1] for t in topics if t in self._known and self._known[t][0] > oldest}
        now, high = time.monotonic(), self._offsets({t: state.high for t, state in known.items()}, _LATEST)
        return {t: replace(state, asked=now) for t, state in known.items() if high.get(t) == state.high}

    def _whole(self, topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        if not topics:
            return {}
        described = {} if self._mock(topics[0]) else self._describe(topics)
        places = {t: dict.fromkeys(partitions, 0) for t, (_, partitions) in described.items()}
        low, high = self._offsets(places, _EARLIEST), self._offsets(places, _LATEST)
        now = time.monotonic()
        found: dict[str, TopicState | ChSinkError] = {}
        for topic in topics:
            if topic in low and topic in high:
                state = TopicState(topic, described[topic][0], low[topic], high[topic])
                before = self._known.get(topic, (0.0, None))[1]
                # The same offsets for the same state: whoever asked sees at once that nothing has changed.
                found[topic] = state = replace(before, asked=now) if before == state and before is not None else state
                self._known[topic] = now, state
            else:
                try:
                    found[topic] = self._ask_one(topic)  # with retries, and the reason if it fails
                except ChSinkError as error:
                    self._known.pop(topic, None)
                    found[topic] = error
        return found

    def _ask_one(self, topic: str) -> TopicState:
        if self._single is None:
            self._single = TopicOffsets(self.settings, timeout=self._timeout)
        state = self._single.state(topic)
        self._known[topic] = time.monotonic(), state
        return state

    def _mock(self, topic: str) -> bool:
        """Whether this is librdkafka's mock cluster, which never answers a description of topics."""
        if self._is_mock is None:
            cluster = self._client().list_topics(topic, timeout=self._timeout).cluster_id or ""
            self._is_mock = cluster.startswith(_MOCK_CLUSTER)
        return self._is_mock

    def _describe(self, topics: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """Id and partitions of the topics that have both."""
        if self._admin is None:
            with creating(self.settings):
                self._admin = AdminClient({**self.settings.for_admin()}, logger=client_log)
        found: dict[str, tuple[str, list[int]]] = {}
        for topic, description in describe_topics(self._admin, topics, self._timeout).items():
            if isinstance(description, confluent_kafka.KafkaException):
                continue
            if own := _id_of(description):
                found[topic] = own, sorted(p.id for p in description.partitions)
        return found

    def _offsets(self, places: _Places, when: int) -> dict[str, dict[int, int]]:
        """The offsets of all these partitions; a topic of which one is not known is left out."""
        asked = [TopicPartition(topic, partition, when) for topic, offsets in places.items() for partition in offsets]
        if not asked:
            return {}
        found: dict[str, dict[int, int]] = {topic: {} for topic in places}
        for place in self._client().offsets_for_times(asked, timeout=self._timeout):
            if place.error is None and place.offset >= 0:
                found[place.topic][place.partition] = int(place.offset)
        return {topic: offsets for topic, offsets in found.items() if offsets.keys() == places[topic].keys()}

    def _client(self) -> Consumer:
        if self._consumer is None:
            with creating(self.settings):
                self._consumer = Consumer(self.settings.for_consumer(), logger=client_log)
        return self._consumer
