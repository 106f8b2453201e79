"""Which failures of Kafka waiting may mend: decided by code."""

import confluent_kafka
import pytest

from ch_sink.errors import AccessRefused, BrokerUnavailable, ChSinkError, KafkaError, TopicNotFound
from ch_sink.kafka.settings import KafkaSettings, translate

Code = confluent_kafka.KafkaError
SETTINGS = KafkaSettings({"bootstrap.servers": "127.0.0.1:1"})


def of(code: int) -> ChSinkError:
    # The text says something else on purpose.
    return translate(Code(code, "unknown topic, access denied, timed out"), SETTINGS, "t")


@pytest.mark.parametrize(
    "code",
    [
        Code._TRANSPORT,
        Code._ALL_BROKERS_DOWN,
        Code._TIMED_OUT,
        Code._RESOLVE,
        Code.REQUEST_TIMED_OUT,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.KAFKA_STORAGE_ERROR,
        # Said by the client, which has no leader for a partition after a minute without any broker.
        Code._UNKNOWN_PARTITION,
        # One of several brokers is gone.
        -137,
        Code.FENCED_LEADER_EPOCH,
    ],
)
def test_a_broker_that_is_away_or_starting_is_waited_for(code):
    error = of(code)
    assert type(error) is BrokerUnavailable
    assert error.temporary


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNKNOWN_TOPIC_OR_PART, TopicNotFound),
        (Code.TOPIC_AUTHORIZATION_FAILED, AccessRefused),
        (Code.SASL_AUTHENTICATION_FAILED, AccessRefused),
        (Code._AUTHENTICATION, AccessRefused),
        (Code.TOPIC_EXCEPTION, KafkaError),
    ],
)
def test_what_a_person_must_settle_is_not(code, kind):
    error = of(code)
    assert type(error) is kind
    assert not error.temporary
