"""Kafka, a schema registry and ClickHouse that let nobody in without TLS and a password or certificate."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ch_sink.local.kafka import LocalKafka
from tests.support.certificates import Authority, Certificate
from tests.support.registry_server import registry_server
from tests.support.tls import tls_in_front

__all__ = ["PLAIN", "REGISTRY", "SCRAM", "Secure", "secure_kafka", "secure_registry"]

PLAIN, SCRAM, REGISTRY, KEY = "plain-pa55word'\"", "scram-pa55word$x", "registry:pa55word", "key-pa55word"
_SASL = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secure:
    """The broker with its listeners, and who may use them."""

    kafka: LocalKafka
    authority: Authority
    stranger: Authority
    """An authority that no server knows."""
    client: Certificate

    def properties(self, how: str, **changes: str) -> dict[str, str]:
        """librdkafka's properties for plain, scram or mutual."""
        address = self.kafka.addresses["MUTUAL" if how == "mutual" else "SECURE"]
        known = {"bootstrap.servers": address, "ssl.ca.location": str(self.authority.ca)}
        if how == "mutual":
            known |= {
                "security.protocol": "SSL",
                "ssl.certificate.location": str(self.client.certificate),
                "ssl.key.location": str(self.client.key),
                "ssl.key.password": KEY,
            }
        else:
            known |= {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN" if how == "plain" else "SCRAM-SHA-512",
                "sasl.username": how,
                "sasl.password": PLAIN if how == "plain" else SCRAM,
            }
        return {**known, **{name.replace("_", "."): value for name, value in changes.items()}}


@contextmanager
def secure_kafka(folder: Path) -> Iterator[Secure]:
    """A broker with the listeners SECURE (SASL over TLS) and MUTUAL (certificates on both sides)."""
    authority, stranger = Authority(folder / "ca"), Authority(folder / "stranger", "stranger")
    server, client = authority.issue("server"), authority.issue("client", KEY)
    escaped = PLAIN.replace("\\", "\\\\").replace('"', '\\\\"')
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.secure.plain.sasl.jaas.config": f"{_SASL}.plain.PlainLoginModule required "
        f'user_plain="{escaped}";',
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{_SASL}.scram.ScramLoginModule required;",
        "listener.name.mutual.ssl.client.auth": "required",
    }
    listeners = {"SECURE": "SASL_SSL", "MUTUAL": "SSL"}
    with LocalKafka(path=folder / "broker", kind="kafka", settings=settings, listeners=listeners) as kafka:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion("scram", info, SCRAM.encode())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(30)
        yield Secure(kafka, authority, stranger, client)


@contextmanager
def secure_registry(secure: Secure, schemas: Mapping[int, object], server: Certificate) -> Iterator[dict[str, str]]:
    """A registry behind TLS that asks for certificates and a password; the properties that reach it."""
    with registry_server(schemas, user=REGISTRY) as registry:
        port = urlsplit(registry.url).port or 0
        with tls_in_front(port, server, secure.authority) as outside:
            yield {
                "schema.registry.url": f"https://127.0.0.1:{outside}",
                "schema.registry.basic.auth.user.info": REGISTRY,
                "schema.registry.ssl.ca.location": str(secure.authority.ca),
                "schema.registry.ssl.certificate.location": str(secure.client.certificate),
                "schema.registry.ssl.key.location": str(secure.client.key),
                "schema.registry.ssl.key.password": KEY,
            }
