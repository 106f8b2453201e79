"""Kafka, a schema registry and ClickHouse that let nobody in without TLS and a password or certificate."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from tests.support.registry_server import registry_server


@dataclass(frozen=True)
class Certificate:
    """PEM files. ``both`` holds the key and the certificate."""

    key: Path
    certificate: Path
    both: Path


class Authority:
    """Makes certificates in a folder, with the command ``openssl``."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        self._run(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.ca)),
        )

    def issue(self, name: str, password: str = "") -> Certificate:
        """A certificate for 127.0.0.1 and localhost; ``password`` encrypts its key, but not in ``both``."""
        at = {end: self._folder / f"{name}.{end}" for end in ("key", "csr", "crt", "pem", "ext")}
        at["ext"].write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        subject = ("-subj", f"/CN={name}")
        self._run("req", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", str(at["key"]), "-out", str(at["csr"]))
        self._run(
            *("x509", "-req", "-days", "2", "-in", str(at["csr"]), "-CA", str(self.ca), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-extfile", str(at["ext"]), "-out", str(at["crt"])),
        )
        at["pem"].write_text(at["key"].read_text() + at["crt"].read_text())
        if password:
            locked = self._folder / f"{name}.locked"
            encrypt = ("-aes256", "-passout", f"pass:{password}")
            self._run("pkey", "-in", str(at["key"]), *encrypt, "-out", str(locked))
            locked.replace(at["key"])
        return Certificate(at["key"], at["crt"], at["pem"])

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)


@contextmanager
def tls_in_front(port: int, server: Certificate, clients: Authority | None = None) -> Iterator[int]:
    """The port of a listener that passes what it decrypts to another port of this machine.

    ``clients``: a client has to show a certificate of this authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.both)
    if clients is not None:
        context.load_verify_locations(clients.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError):
            inside = context.wrap_socket(plain, server_side=True)
            outside = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(inside, outside), daemon=True).start()
            pump(outside, inside)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError, ValueError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.close()

    threading.Thread(target=accept, daemon=True).start()
    yield int(listener.getsockname()[1])
    listener.close()


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
