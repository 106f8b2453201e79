"""Commits the streams' offsets to consumer groups, for lag tools and as a witness of how far a stream has come."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from ch_sink.kafka.failures import client_log
from ch_sink.kafka.settings import KafkaSettings

__all__ = ["GroupCommits", "GroupOffsets"]

_log = logging.getLogger("ch_sink.kafka")

_LOOK = 3.0
"""Seconds in which a broker must answer before anything is committed."""
_Offsets = dict[tuple[str, int], int]
"""(Topic, partition) → offset."""
_Notice = Callable[[dict[int, int]], None]


class GroupCommits:
    """Commits offsets of many groups by one client, every few seconds. A failure is logged and never raised.

    May be used by several threads. ``close`` commits what is left.
    """

    def __init__(self, settings: Mapping[str, object], *, every: float = 5.0, timeout: float = 10.0) -> None:
        self._settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self._every, self._timeout = every, timeout
        self._lock = threading.Lock()
        self._due: dict[str, _Offsets] = {}
        self._refused: dict[str, str] = {}
        self._asked: dict[tuple[str, str], tuple[Sequence[int], _Notice]] = {}
        self._filled, self._closing = threading.Event(), threading.Event()
        self._admin: AdminClient | None = None
        self._thread: threading.Thread | None = None

    def put(self, group: str, topic: str, ends: Mapping[int, int]) -> None:
        """Commit the next offset of each partition soon."""
        with self._lock:
            self._due.setdefault(group, {}).update({(topic, p): end for p, end in ends.items()})
            self._filled.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ch_sink groups", daemon=True)
                self._thread.start()

    def flush(self) -> bool:
        """Commit what is due now; whether the broker accepted all of it."""
        with self._lock:
            due, self._due = self._due, {}
            self._filled.clear()
            asked = {place: self._asked.pop(place) for place in list(self._asked) if place[0] in due}
        if not due:
            return True
        for (group, topic), (partitions, notice) in asked.items():
            notice(self.committed(group, topic, partitions))
        refused = self._commit(due)
        for group, reason in refused.items():
            if self._refused.get(group) != reason:  # once, not with every batch
                _log.warning("offsets of group %s were not committed: %s", group, reason)
        self._refused = {g: r for g, r in self._refused.items() if g not in due} | refused
        return not refused

    def close(self) -> None:
        """Commit what is left, and disconnect; the next `put` opens a client again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._closing.set()
            self._filled.set()
            thread.join(2 * self._timeout)
            self._closing.clear()
        self.flush()
        self._admin = None

    def _run(self) -> None:
        while not self._closing.is_set():
            self._filled.wait()
            if not self._closing.wait(self._every):
                self.flush()

    def _commit(self, due: Mapping[str, _Offsets]) -> dict[str, str]:
        """Commit; the reasons for which groups were refused."""
        refused: dict[str, str] = {}
        try:
            _expect_answer(self._client(), due)
            asked: dict[str, Future[ConsumerGroupTopicPartitions]] = {}
            for group, offsets in due.items():
                places = [TopicPartition(topic, p, end) for (topic, p), end in sorted(offsets.items())]
                request = [ConsumerGroupTopicPartitions(group, places)]
                asked |= self._client().alter_consumer_group_offsets(request, request_timeout=self._timeout)
        except confluent_kafka.KafkaException as error:
            return dict.fromkeys(due, error.args[0].str())
        for group, answer in asked.items():
            try:
                found = answer.result(self._timeout + 5)
            except confluent_kafka.KafkaException as error:
                refused[group] = error.args[0].str()
            except TimeoutError:
                refused[group] = f"no answer in {self._timeout:g} seconds"
            else:
                failed = [place.error for place in found.topic_partitions or () if place.error is not None]
                if failed:
                    refused[group] = failed[0].str()
        return refused

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets that a group has committed, as far as they are known. Never raises."""
        try:
            asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in partitions])
            answer = self._client().list_consumer_group_offsets([asked], request_timeout=self._timeout)
            found = answer[group].result(self._timeout + 5)
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            _log.debug("offsets of group %s are not known: %s", group, error)
            return {}
        return {
            place.partition: place.offset
            for place in found.topic_partitions or ()
            if place.error is None and place.offset >= 0
        }

    def before(self, group: str, topic: str, partitions: Sequence[int], notice: _Notice) -> None:
        """Before the group's next commit, ``notice`` receives the offsets of the last one."""
        with self._lock:
            self._asked[group, topic] = (partitions, notice)

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**self._settings.for_admin()}, logger=client_log)
        return self._admin


def _expect_answer(admin: AdminClient, due: Mapping[str, _Offsets]) -> None:
    """Raises KafkaException if the brokers are away: librdkafka would abort the process when they are back.

    See confluentinc/librdkafka issue 4605.
    """
    topic = next(topic for offsets in due.values() for topic, _ in offsets)
    admin.list_topics(topic, timeout=_LOOK)


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The consumer group of one stream."""

    commits: GroupCommits
    group: str

    def commit(self, topic: str, ends: Mapping[int, int]) -> None:
        """Commit the offset after the last applied one of each partition, soon."""
        self.commits.put(self.group, topic, ends)

    def last_committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets that were committed last, as far as they are known. Never raises."""
        return self.commits.committed(self.group, topic, partitions)

    def before_commit(self, topic: str, partitions: Sequence[int], notice: _Notice) -> None:
        """Before the next commit, ``notice`` receives the offsets of the last one, in another thread."""
        self.commits.before(self.group, topic, partitions, notice)
