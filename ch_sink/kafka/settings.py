"""Settings of Kafka's clients, and their failures as errors of the product."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka

from ch_sink.errors import AccessRefused, BrokerUnavailable, ChSinkError, ConfigError, KafkaError, TopicNotFound

HIDDEN = "••••••"
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config|jaas|token(?!\.endpoint)", re.IGNORECASE)

_CONSUMER_DEFAULTS = {
    "isolation.level": "read_committed",
    # A fetch that waits at the end of one partition delays the next assignment on that broker until it returns.
    "fetch.wait.max.ms": "5",
    # Records fetched past the end of a range are discarded, so the queue is short. Larger fetches take more processor
    # time, since the cache forgets them before they are copied; smaller ones are slow where the broker is far.
    "queued.max.messages.kbytes": "16384",
    "max.partition.fetch.bytes": "2097152",
    # The default, a pause of one second whenever the queue is full, makes a short queue ten times slower.
    "fetch.queue.backoff.ms": "1",
    "fetch.error.backoff.ms": "50",
    "reconnect.backoff.max.ms": "2000",
    # How long an unknown topic counts as one that is still being created.
    "topic.metadata.propagation.max.ms": "3000",
}
_CONSUMER_FIXED = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # With any other value librdkafka skips missing offsets silently.
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}
_CONSUMER_ONLY = {"max.partition.fetch.bytes", "isolation.level", "group.id", "client.rack", "check.crcs"}


def redact(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties with every secret replaced: for logs, errors and ``repr``."""
    return {name: HIDDEN if _SECRET.search(name) else str(setting) for name, setting in properties.items()}


class KafkaSettings(Mapping[str, str]):
    """librdkafka properties as text. ``repr`` and ``str`` hide secrets; hashable, to name a cached client."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self._properties = {name: _text(setting) for name, setting in sorted(properties.items())}

    def __getitem__(self, name: str) -> str:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __hash__(self) -> int:
        return hash(tuple(self._properties.items()))

    def without_secrets(self, text: str) -> str:
        """The text with every secret of the properties replaced."""
        for name, setting in self._properties.items():
            if setting and _SECRET.search(name):
                text = text.replace(setting, HIDDEN)
        return text

    def __repr__(self) -> str:
        return f"KafkaSettings({redact(self._properties)!r})"

    @property
    def bootstrap(self) -> str:
        """The broker addresses, for error messages."""
        return self._properties.get("bootstrap.servers", "(no bootstrap.servers)")

    def for_consumer(self) -> dict[str, str]:
        """Properties of a consumer of ranges: defaults, the user's over them, and those that nobody can change."""
        return {"group.id": "ch_sink", **_CONSUMER_DEFAULTS, **self._properties, **_CONSUMER_FIXED}

    def for_group(self, group: str) -> dict[str, str]:
        """Properties of a client that only commits offsets of a consumer group."""
        return {**self.for_consumer(), "group.id": group}

    def for_admin(self) -> dict[str, str]:
        """Properties of an admin client: the user's without those that concern consuming only."""
        skip = re.compile(r"fetch\.|queued\.|enable\.|auto\.")
        kept = self._properties.items()
        return {name: text for name, text in kept if name not in _CONSUMER_ONLY and not skip.match(name)}

    def to_json(self) -> str:
        """All properties, secrets included: only for handing them to a process of the same job."""
        return json.dumps(self._properties)

    @classmethod
    def from_json(cls, text: str) -> "KafkaSettings":
        """Undo ``to_json``."""
        return cls(json.loads(text))


def _text(setting: object) -> str:
    return ("true" if setting else "false") if isinstance(setting, bool) else str(setting)


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
