"""Translates the client library's errors into ch_sink's, each with the next step."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka

from ch_sink.errors import AccessRefused, BrokerUnavailable, ChSinkError, ConfigError, KafkaError, TopicNotFound
from ch_sink.kafka.settings import KafkaSettings

__all__ = [
    "UNKNOWN_PARTITION",
    "UNKNOWN_TOPIC",
    "client_log",
    "creating",
    "is_denied",
    "is_transient",
    "is_unreachable",
    "translate",
    "unavailable",
]

_log = logging.getLogger("ch_sink.kafka.client")


class _ClientLog:
    """librdkafka's own log, as Python log records below warning: it repeats itself ten times a second."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        _log.log(min(level, logging.DEBUG), text, *arguments)


client_log: Any = _ClientLog()
"""The ``logger`` of every client. Failures that matter arrive as errors."""

_Code = confluent_kafka.KafkaError
UNKNOWN_TOPIC = {_Code.UNKNOWN_TOPIC_OR_PART, _Code._UNKNOWN_TOPIC}
_DENIED = {
    _Code._AUTHENTICATION,
    _Code.SASL_AUTHENTICATION_FAILED,
    _Code.TOPIC_AUTHORIZATION_FAILED,
    _Code.GROUP_AUTHORIZATION_FAILED,
    _Code.CLUSTER_AUTHORIZATION_FAILED,
}
_DESTROY_BROKER = -137
"""A broker has left the metadata, as one that was killed (librdkafka 2.10 and later; no name in older clients)."""
_UNREACHABLE = {
    _DESTROY_BROKER,
    _Code._WAIT_CACHE,
    _Code._UNKNOWN_BROKER,
    _Code._TRANSPORT,
    _Code._ALL_BROKERS_DOWN,
    _Code._TIMED_OUT,
    _Code._RESOLVE,
    _Code._TIMED_OUT_QUEUE,
    _Code.REQUEST_TIMED_OUT,
    _Code.LEADER_NOT_AVAILABLE,
    _Code.BROKER_NOT_AVAILABLE,
    _Code.NOT_LEADER_FOR_PARTITION,
    _Code.NETWORK_EXCEPTION,
    _Code._WAIT_COORD,
    _Code.REPLICA_NOT_AVAILABLE,
    _Code.OFFSET_NOT_AVAILABLE,
    _Code.COORDINATOR_LOAD_IN_PROGRESS,
    _Code.COORDINATOR_NOT_AVAILABLE,
    _Code.NOT_COORDINATOR,
    _Code.NOT_CONTROLLER,
    _Code.KAFKA_STORAGE_ERROR,
    _Code.LISTENER_NOT_FOUND,
    _Code.FENCED_LEADER_EPOCH,
    _Code.UNKNOWN_LEADER_EPOCH,
    _Code.THROTTLING_QUOTA_EXCEEDED,
}

UNKNOWN_PARTITION = _Code._UNKNOWN_PARTITION
"""The client's own word, never a broker's: it has no leader for the partition, as after a minute without any broker."""

_TRANSIENT = {
    _Code.LEADER_NOT_AVAILABLE,
    _Code.NOT_LEADER_FOR_PARTITION,
    _Code.OFFSET_NOT_AVAILABLE,
    _Code.FENCED_LEADER_EPOCH,
    _Code.UNKNOWN_LEADER_EPOCH,
    _DESTROY_BROKER,
    UNKNOWN_PARTITION,
}


@contextmanager
def creating(settings: KafkaSettings) -> Iterator[None]:
    """Raises ConfigError if a client cannot be made of the settings: a file is missing, a key's password is wrong, …"""
    try:
        yield
    except confluent_kafka.KafkaException as error:
        raise ConfigError(
            f"the Kafka client refuses the properties under kafka: {settings.without_secrets(error.args[0].str())}",
            hint="Check the property that it names, and the files of certificates and keys with their password.",
        ) from None


def is_denied(error: confluent_kafka.KafkaError) -> bool:
    """Whether the broker refuses the user or the request, so that a retry is pointless."""
    return error.code() in _DENIED


def is_transient(error: confluent_kafka.KafkaError) -> bool:
    """Whether a retry may succeed: a leader moves, a topic is being created."""
    return error.retriable() or error.code() in _TRANSIENT


def is_unreachable(error: confluent_kafka.KafkaError) -> bool:
    """Whether no broker answers, or none that could."""
    return error.code() in _UNREACHABLE


def unavailable(settings: KafkaSettings, reason: str) -> BrokerUnavailable:
    """No broker answered at the settings' addresses."""
    return BrokerUnavailable(
        f"no Kafka broker answers at {settings.bootstrap}: {reason}",
        hint="Check kafka.bootstrap.servers, the network, and that the broker runs.",
    )


def translate(error: confluent_kafka.KafkaError, settings: KafkaSettings, topic: str) -> ChSinkError:
    """The error for a failure of the client while it works on ``topic``."""
    code = error.code()
    if code in UNKNOWN_TOPIC:
        return TopicNotFound(
            f"topic {topic} does not exist at {settings.bootstrap}",
            hint="Check kafka.topic; Debezium creates a topic with its first event.",
        )
    if code in _DENIED:
        return AccessRefused(
            f"the broker at {settings.bootstrap} refuses access to topic {topic}: {error.str()}",
            hint="Check the security properties under kafka, and the user's read rights on the topic.",
        )
    if code in _UNREACHABLE or code == UNKNOWN_PARTITION or error.retriable():
        return unavailable(settings, error.str())
    return KafkaError(f"topic {topic}: {error.name()}: {error.str()}")
