"""Watermarks of many topics by few questions: one metadata request, and one list of offsets for each broker."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ch_sink.errors import ChSinkError
from ch_sink.kafka.descriptions import describe_topics
from ch_sink.kafka.failures import client_log, creating, translate, unavailable
from ch_sink.kafka.offsets import TopicOffsets
from ch_sink.kafka.settings import KafkaSettings
from ch_sink.model.values import TopicState

__all__ = ["TopicWatermarks"]

_EARLIEST, _LATEST = -2, -1
_MOCK_CLUSTER = "mockCluster"
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
        high = self._offsets({t: state.high for t, state in known.items()}, _LATEST)
        return {t: state for t, state in known.items() if high.get(t) == state.high}

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
                # The same object for the same state: whoever asked sees at once that nothing has changed.
                found[topic] = state = before if before == state and before is not None else state
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
            own = description.topic_id
            if own is not None and (own.get_most_significant_bits() or own.get_least_significant_bits()):
                found[topic] = str(own), sorted(p.id for p in description.partitions)
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
