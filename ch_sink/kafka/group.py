"""Commits the streams' offsets to consumer groups, for lag tools and as a witness of how far a stream has come."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

from ch_sink.kafka.settings import KafkaSettings, client_log, is_unreachable

_log = logging.getLogger("ch_sink.kafka")

_KEPT = 8
"""Groups whose clients are kept."""
_ROUNDS = 12
"""Rounds in which each of many groups is committed once."""
_Offsets = dict[tuple[str, int], int]
"""(Topic, partition) → offset."""
_Notice = Callable[[dict[int, int]], None]


class GroupCommits:
    """Commits offsets of many groups, every few seconds. A failure is logged and never raised.

    Each group needs a client of its own, which costs the broker more than the commit. So of many groups some are
    committed each time, in turn. May be used by several threads. ``close`` commits what is left.
    """

    def __init__(self, settings: Mapping[str, object], *, every: float = 5.0, timeout: float = 10.0) -> None:
        self._settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self._every, self._timeout = every, timeout
        self._lock = threading.Lock()
        self._due: dict[str, _Offsets] = {}
        """The group that has been due for longest comes first."""
        self._groups: set[str] = set()
        self._refused: dict[str, str] = {}
        self._asked: dict[str, dict[str, tuple[Sequence[int], _Notice]]] = {}
        self._filled, self._closing = threading.Event(), threading.Event()
        self._kept: dict[str, _GroupClient] = {}
        self._thread: threading.Thread | None = None

    def put(self, group: str, topic: str, ends: Mapping[int, int]) -> None:
        """Commit the next offset of each partition soon."""
        with self._lock:
            self._due.setdefault(group, {}).update({(topic, p): end for p, end in ends.items()})
            self._groups.add(group)
            self._filled.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ch_sink groups", daemon=True)
                self._thread.start()

    def flush(self, most: int | None = None) -> bool:
        """Commit what is due now, of so many groups at most; whether the broker accepted all of it."""
        with self._lock:
            due = {group: self._due.pop(group) for group in list(self._due)[:most]}
            if not self._due:
                self._filled.clear()
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
        with self._lock:
            kept, self._kept = self._kept, {}
        for client in kept.values():
            client.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._filled.wait()
            if not self._closing.wait(self._every):
                self.flush(max(_KEPT, ceil(len(self._groups) / _ROUNDS)))

    def _commit(self, due: Mapping[str, _Offsets]) -> dict[str, str]:
        """Commit; the reasons for which groups were refused."""
        refused: dict[str, str] = {}
        for group, offsets in due.items():
            places = [TopicPartition(topic, p, end) for (topic, p), end in sorted(offsets.items())]
            self._tell(group)
            try:
                with self._client(group) as client:
                    client.commit(places)
            except confluent_kafka.KafkaException as error:
                refused[group] = error.args[0].str()
                if is_unreachable(error.args[0]):
                    # None of the others would be answered, and each would time out.
                    return {**dict.fromkeys(due, refused[group]), **refused}
        return refused

    def _tell(self, group: str) -> None:
        """Give what the group has committed to those who asked for it; its client is kept for the commit."""
        with self._lock:
            asked = self._asked.pop(group, {})
        for topic, (partitions, notice) in asked.items():
            notice(self.committed(group, topic, partitions))

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The known committed offsets of a group. Never raises."""
        try:
            with self._client(group) as client:
                found = client.committed([TopicPartition(topic, p) for p in partitions])
        except confluent_kafka.KafkaException as error:
            _log.debug("offsets of group %s are not known: %s", group, error)
            return {}
        return {place.partition: place.offset for place in found if place.error is None and place.offset >= 0}

    def before(self, group: str, topic: str, partitions: Sequence[int], notice: _Notice) -> None:
        """Before the group's next commit, ``notice`` receives the offsets of the last one."""
        with self._lock:
            self._asked.setdefault(group, {})[topic] = (partitions, notice)

    @contextmanager
    def _client(self, group: str) -> Iterator["_GroupClient"]:
        """A client of the group; some are kept for the next time."""
        with self._lock:
            client = self._kept.pop(group, None)
        client = client or _GroupClient(self._settings, group, self._timeout)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            self._kept[group] = client
            spare = self._kept.pop(next(iter(self._kept))) if len(self._kept) > _KEPT else None
        if spare is not None:
            spare.close()


class _GroupClient:
    """Reads and commits offsets of one group. Raises KafkaException.

    A consumer, although one admin client could serve all groups: librdkafka aborts the process if brokers go away
    while an admin client asks them about groups (confluentinc/librdkafka issue 4605).
    """

    def __init__(self, settings: KafkaSettings, group: str, timeout: float) -> None:
        self._timeout = timeout
        self._answers: list[tuple[confluent_kafka.KafkaError | None, list[TopicPartition]]] = []
        self._consumer = Consumer({**settings.for_group(group), "on_commit": self._note}, logger=client_log)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """The places with the offsets that were committed."""
        return self._consumer.committed(places, self._timeout)

    def commit(self, places: list[TopicPartition]) -> None:
        """Commit the places' offsets."""
        self._answers.clear()
        # This call comes first because it has a timeout: a commit that waits for a coordinator cannot be cancelled
        # and delays the closing of the client for most of a minute.
        self.committed([TopicPartition(place.topic, place.partition) for place in places])
        self._consumer.commit(offsets=places, asynchronous=True)
        deadline = time.monotonic() + self._timeout
        while not self._answers:
            if time.monotonic() > deadline:
                raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
            self._consumer.poll(0.05)
        error, answered = self._answers[0]
        error = error or next((place.error for place in answered if place.error is not None), None)
        if error is not None:
            raise confluent_kafka.KafkaException(error)

    def _note(self, error: confluent_kafka.KafkaError | None, places: list[TopicPartition]) -> None:
        self._answers.append((error, places))


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The consumer group of one stream."""

    commits: GroupCommits
    group: str

    def commit(self, topic: str, ends: Mapping[int, int]) -> None:
        """Commit the offset after the last applied one of each partition, soon."""
        self.commits.put(self.group, topic, ends)

    def last_committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The known offsets committed last. Never raises."""
        return self.commits.committed(self.group, topic, partitions)

    def before_commit(self, topic: str, partitions: Sequence[int], notice: _Notice) -> None:
        """Before the next commit, ``notice`` receives the offsets of the last one, in another thread."""
        self.commits.before(self.group, topic, partitions, notice)
