"""Commits the stream's offsets to a consumer group, for lag tools. The sink never reads them back."""

import logging
import time
from collections.abc import Mapping

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

from ch_sink.kafka.failures import client_log
from ch_sink.kafka.settings import KafkaSettings

__all__ = ["GroupOffsets"]

_log = logging.getLogger("ch_sink.kafka")


class GroupOffsets:
    """Commits offsets of one consumer group from the driver. A failure is logged as a warning and never raised."""

    def __init__(self, settings: Mapping[str, object], group: str, *, timeout: float = 10.0) -> None:
        self._group = group
        self._timeout = timeout
        self._answers: list[tuple[confluent_kafka.KafkaError | None, list[TopicPartition]]] = []
        self._settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Disconnect from the broker."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def commit(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Commit the offset after the last applied one of each partition; returns whether the broker accepted all."""
        places = [TopicPartition(topic, partition, end) for partition, end in sorted(ends.items())]
        if not places:
            return True
        try:
            failed = self._commit(places)
        except confluent_kafka.KafkaException as error:
            failed = error.args[0].str()
        if failed is not None:
            _log.warning("offsets of group %s for topic %s were not committed: %s", self._group, topic, failed)
        return failed is None

    def _commit(self, places: list[TopicPartition]) -> str | None:
        if self._consumer is None:
            properties = {**self._settings.for_group(self._group), "on_commit": self._note}
            self._consumer = Consumer(properties, logger=client_log)
        self._answers.clear()
        # This call comes first because it has a timeout: a commit that waits for a coordinator cannot be cancelled
        # and delays the closing of the client for most of a minute.
        self._consumer.committed([TopicPartition(place.topic, place.partition) for place in places], self._timeout)
        self._consumer.commit(offsets=places, asynchronous=True)
        deadline = time.monotonic() + self._timeout
        while not self._answers:
            if time.monotonic() > deadline:
                return f"no answer in {self._timeout:g} seconds"
            self._consumer.poll(0.05)
        error, answered = self._answers[0]
        if error is not None:
            return str(error.str())
        refused = [place for place in answered if place.error is not None]
        return str(refused[0].error) if refused else None

    def _note(self, error: confluent_kafka.KafkaError | None, places: list[TopicPartition]) -> None:
        self._answers.append((error, places))
