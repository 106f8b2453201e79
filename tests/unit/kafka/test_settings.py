"""Properties of Kafka's clients, and their failures as errors of the product."""

import pickle

import confluent_kafka
import pytest

from ch_sink.errors import AccessRefused, BrokerUnavailable, ChSinkError, KafkaError, TopicNotFound
from ch_sink.kafka import KafkaSettings, redact
from ch_sink.kafka.settings import translate


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.jaas.config",
    ],
)
def test_secrets_do_not_show(name: str) -> None:
    settings = KafkaSettings({"bootstrap.servers": "b:1", name: "hunter2"})
    for shown in (repr(settings), str(settings), f"{settings}", str(redact(settings))):
        assert "hunter2" not in shown
        assert "b:1" in shown
    assert settings[name] == "hunter2"
    assert settings.for_consumer()[name] == "hunter2"
    assert settings.for_admin()[name] == "hunter2"


def test_user_properties_win_over_defaults_but_not_over_exactness() -> None:
    given = {"isolation.level": "read_uncommitted", "auto.offset.reset": "latest", "enable.auto.commit": True, "x": 5}
    made = KafkaSettings(given).for_consumer()
    assert made["isolation.level"] == "read_uncommitted"
    assert made["auto.offset.reset"] == "error"
    assert made["enable.auto.commit"] == "false"
    assert made["x"] == "5"


def test_equal_settings_name_the_same_client_after_a_journey() -> None:
    settings = KafkaSettings({"b": 1, "a": True})
    assert KafkaSettings.from_json(settings.to_json()) == settings == pickle.loads(pickle.dumps(settings))
    assert hash(KafkaSettings({"a": "true", "b": "1"})) == hash(settings)


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
