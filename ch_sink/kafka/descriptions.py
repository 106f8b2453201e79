"""Descriptions of topics, which only the broker gives that the client takes for the controller."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from ch_sink.kafka.failures import is_unreachable

__all__ = ["describe_topics"]

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
