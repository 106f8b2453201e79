"""TLS, certificates on both sides, SASL PLAIN and SCRAM against a real broker; TLS to the registry and ClickHouse."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import AccessDenied, ChSinkError, ClickHouseError, ConfigError, KafkaError, RegistryError
from ch_sink.kafka import KafkaSettings, RangeConsumer, TopicOffsets
from ch_sink.kafka.registry import schema_registry
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.support.endpoint import settings_for
from tests.support.fixtures import registry_schemas
from tests.support.kafka import fresh_topic, produce, values
from tests.support.secure import KEY, PLAIN, SCRAM, Certificate, Secure, secure_kafka, secure_registry, tls_in_front

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

PATIENT = {"socket.timeout.ms": "3000", "socket.connection.setup.timeout.ms": "3000"}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_kafka(tmp_path_factory.mktemp("secure")) as found:
        yield found


@pytest.fixture(scope="module")
def server(secure: Secure) -> Certificate:
    return secure.authority.issue("other-server")


@pytest.fixture(scope="module")
def topic(secure: Secure) -> str:
    name = fresh_topic("secure")
    secure.kafka.create_topic(name, 1)
    produce(secure.kafka, values(name, 0, ["a", "b"]))
    return name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["plain", "scram", "mutual"])
def test_a_topic_is_read_over_each_of_the_protocols(secure: Secure, topic: str, how: str) -> None:
    settings = KafkaSettings(secure.properties(how))
    with closing(TopicOffsets(settings)) as offsets:
        assert offsets.state(topic).high == {0: 2}
    with closing(RangeConsumer(settings)) as consumer:
        assert [v for records in consumer.read(topic, 0, 0, 2) for v in records.values] == [b"a", b"b"]
    assert not any(secret in repr(settings) for secret in (PLAIN, SCRAM, KEY))


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ("plain", {"sasl_password": "wr0ng"}),
        pytest.param("scram", {"sasl_password": "wr0ng"}, marks=pytest.mark.long),
        pytest.param("plain", {"ssl_ca_location": "stranger"}, marks=pytest.mark.long),
        ("mutual", {"ssl_key_password": "wr0ng"}),
        ("mutual", {"ssl_certificate_location": "", "ssl_key_location": "", "ssl_key_password": ""}),
    ],
    ids=["plain password", "scram password", "unknown authority", "key password", "no certificate"],
)
def test_what_is_wrong_ends_in_an_error_without_a_secret(
    secure: Secure, topic: str, how: str, wrong: dict[str, str]
) -> None:
    if "ssl_ca_location" in wrong:
        wrong = {"ssl_ca_location": str(secure.stranger.ca)}
    given = {name: value for name, value in secure.properties(how, **wrong).items() if value}
    with (
        pytest.raises(ChSinkError) as refused,
        closing(TopicOffsets(KafkaSettings({**given, **PATIENT}), timeout=4.0)) as offsets,
    ):
        offsets.state(topic)
    assert isinstance(refused.value, ConfigError if wrong.get("ssl_key_password") else KafkaError)
    assert not any(s in f"{refused.value} {refused.value.hint}" for s in (PLAIN, SCRAM, KEY, "wr0ng"))


def test_a_registry_behind_tls_that_asks_for_a_certificate_and_a_password(secure: Secure, server: Certificate) -> None:
    schemas = registry_schemas("postgres")
    with secure_registry(secure, schemas, server) as properties:
        known = {name.removeprefix("schema.registry."): value for name, value in properties.items()}
        registry = schema_registry(known)
        assert registry is not None
        assert registry.find(next(iter(schemas))) is not None
        stranger = schema_registry({**known, "ssl.ca.location": str(secure.stranger.ca), "max.retries": "0"})
        assert stranger is not None
        with pytest.raises(RegistryError) as refused:
            stranger.find(1)
        assert "pa55word" not in f"{refused.value} {refused.value.hint}"
        denied = schema_registry({**known, "basic.auth.user.info": "registry:wr0ng"})
        assert denied is not None
        with pytest.raises(RegistryError, match=r"401|refuses") as refused:
            denied.find(1)
        assert "wr0ng" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mutual", [False, True])
def test_clickhouse_behind_tls(secure: Secure, server: Certificate, mutual: bool) -> None:
    secret = "clickhouse-pa55word"
    with (
        EmbeddedClickHouse(password=secret) as plain,
        tls_in_front(plain.port, server, secure.authority if mutual else None) as port,
    ):
        # The driver takes no password for a client's key.
        client = secure.authority.issue("client-of-clickhouse")
        mine = {"client_cert": str(client.certificate), "client_cert_key": str(client.key)} if mutual else {}
        known = {"password": secret, "ca_cert": str(secure.authority.ca), **mine}
        url = f"https://127.0.0.1:{port}"
        found = Client(settings_for(url, **known))
        assert found.rows("SELECT 1 AS one") == [{"one": 1}]
        assert secret not in repr(found) + repr(found.settings)
        with pytest.raises(AccessDenied) as refused:
            Client(settings_for(url, **{**known, "password": "wr0ng"}))
        assert "wr0ng" not in f"{refused.value} {refused.value.hint}"
        with pytest.raises(ClickHouseError):
            Client(settings_for(url, **{**known, "ca_cert": str(secure.stranger.ca)}))
        if mutual:
            with pytest.raises(ClickHouseError):
                Client(settings_for(url, password=secret, ca_cert=str(secure.authority.ca)))
