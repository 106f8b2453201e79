"""Turns the client library's errors into this product's, each with the next step."""

import confluent_kafka

from ch_sink.errors import BrokerUnavailable, ChSinkError, KafkaError, TopicNotFound
from ch_sink.kafka.settings import KafkaSettings

__all__ = ["is_denied", "translate", "unavailable"]

_Code = confluent_kafka.KafkaError
_UNKNOWN_TOPIC = {_Code.UNKNOWN_TOPIC_OR_PART, _Code._UNKNOWN_TOPIC}
_DENIED = {
    _Code._AUTHENTICATION,
    _Code.SASL_AUTHENTICATION_FAILED,
    _Code.TOPIC_AUTHORIZATION_FAILED,
    _Code.GROUP_AUTHORIZATION_FAILED,
    _Code.CLUSTER_AUTHORIZATION_FAILED,
}
_AWAY = {
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
}


def is_denied(error: confluent_kafka.KafkaError) -> bool:
    """Whether the broker refused who we are or what we ask for: waiting does not help."""
    return error.code() in _DENIED


def unavailable(settings: KafkaSettings, reason: str) -> BrokerUnavailable:
    """No broker answered at the settings' addresses."""
    return BrokerUnavailable(
        f"no Kafka broker answers at {settings.bootstrap}: {reason}",
        hint="Check kafka.bootstrap.servers, the network, and that the broker runs.",
    )


def translate(error: confluent_kafka.KafkaError, settings: KafkaSettings, topic: str) -> ChSinkError:
    """The product's error for a client error met while working on ``topic``."""
    code = error.code()
    if code in _UNKNOWN_TOPIC:
        return TopicNotFound(
            f"topic {topic} does not exist at {settings.bootstrap}",
            hint="Check kafka.topic; Debezium creates a topic with its first event.",
        )
    if code == _Code._UNKNOWN_PARTITION:
        return TopicNotFound(f"topic {topic} does not have the partition asked for: {error.str()}")
    if code in _DENIED:
        return KafkaError(
            f"the broker at {settings.bootstrap} refuses access to topic {topic}: {error.str()}",
            hint="Check the security properties under kafka, and the user's read rights on the topic.",
        )
    if code in _AWAY:
        return unavailable(settings, error.str())
    return KafkaError(f"topic {topic}: {error.name()}: {error.str()}")
