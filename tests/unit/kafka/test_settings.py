"""The user's properties pass through; what exactness demands is not negotiable; secrets are never shown."""

import pickle

import pytest

from ch_sink.kafka import KafkaSettings, redact


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
