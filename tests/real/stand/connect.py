"""Kafka Connect with Debezium's connectors, and the schema registry its Avro converter writes to."""

import json
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as Xml
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ch_sink.local import free_port
from ch_sink.local.kafka import KAFKA_VERSION, LOGGING
from ch_sink.local.maven import Archive, ArchivesUnavailable, fetched
from ch_sink.spark.installed import MINIMUM, find_java
from tests.real.stand.daemon import Daemon, Missing

_POM = Path(__file__).resolve().parents[3] / "compose" / "connect" / "pom.xml"
_KAFKA = "org.apache.kafka"
_JAVA_OPTIONS = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Connect:
    """A standalone worker; its connectors are made, and made again after a kill, over its REST interface."""

    def __init__(self, bootstrap: str) -> None:
        """Raises Missing where the worker or its plugins cannot be had."""
        java, worker, plugins = _java(), *_jars()
        self.folder = Path(tempfile.mkdtemp(prefix="ch_sink-connect-"))
        (self.folder / "plugins").mkdir()
        (self.folder / "plugins" / "debezium").symlink_to(plugins)
        self.url = f"http://127.0.0.1:{free_port()}"
        properties = {
            "bootstrap.servers": bootstrap,
            "listeners": self.url,
            "plugin.path": str(self.folder / "plugins"),
            # Apicurio's converter has no service file.
            "plugin.discovery": "only_scan",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "4000",
        }
        path = self.folder / "worker.properties"
        path.write_text("".join(f"{name}={setting}\n" for name, setting in properties.items()), encoding="utf-8")
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [str(java), *_JAVA_OPTIONS, "-cp", f"{worker}/*", main, str(path)]
        self._daemon = Daemon("connect", self.folder, command)
        self._connectors: dict[str, Mapping[str, str]] = {}

    def start(self) -> None:
        """Start, with the connectors that were there before a kill."""
        self._daemon.start(lambda: _answers(f"{self.url}/connectors"))
        for name, properties in self._connectors.items():
            _ask("PUT", f"{self.url}/connectors/{name}/config", properties)

    def stop(self) -> None:
        self._daemon.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """As a power cut would: what was sent since the last flush of offsets is sent again."""
        self._daemon.kill()

    def add(self, name: str, properties: Mapping[str, str]) -> None:
        """Make a connector."""
        self._connectors[name] = properties
        _ask("PUT", f"{self.url}/connectors/{name}/config", properties)

    def remove(self, name: str) -> None:
        """End a connector."""
        if self._connectors.pop(name, None) is not None:
            _ask("DELETE", f"{self.url}/connectors/{name}")

    def wait_until_running(self, seconds: float = 180.0) -> None:
        """Raises RuntimeError with the worker's words when a connector or its task does not run."""
        deadline = time.monotonic() + seconds
        states: dict[str, Any] = {}
        while time.monotonic() < deadline:
            states = {name: self._state(name) for name in self._connectors}
            if all(state == ["RUNNING", "RUNNING"] for state in states.values()):
                return
            if any("FAILED" in state for state in states.values()):
                break
            time.sleep(0.2)
        raise RuntimeError(f"connectors do not run: {states}\n{self._daemon.tail(6000)}")

    def _state(self, name: str) -> list[str]:
        try:
            found = _ask("GET", f"{self.url}/connectors/{name}/status")
        except urllib.error.HTTPError as error:
            error.close()
            return []
        return [found["connector"]["state"], *(task["state"] for task in found["tasks"])]


class Registry:
    """Apicurio Registry in memory, with the interface of Confluent's under ``url``."""

    def __init__(self) -> None:
        """Raises Missing where it cannot be had."""
        java, program = _java(), _registry()
        self.folder = Path(tempfile.mkdtemp(prefix="ch_sink-registry-"))
        port = free_port()
        self._base = f"http://127.0.0.1:{port}"
        self.url = f"{self._base}/apis/ccompat/v7"
        options = [*_JAVA_OPTIONS, f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
        self._daemon = Daemon("registry", self.folder, [str(java), *options, "-jar", str(program)])

    def start(self) -> None:
        self._daemon.start(lambda: _answers(f"{self.url}/subjects"))

    def stop(self) -> None:
        self._daemon.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def converters(self) -> dict[str, str]:
        """A connector's properties that make it write Avro in Confluent's framing."""
        one = {
            "": "io.apicurio.registry.utils.converter.AvroConverter",
            ".apicurio.registry.url": f"{self._base}/apis/registry/v2",
            ".apicurio.registry.auto-register": "true",
            ".apicurio.registry.find-latest": "true",
            ".apicurio.registry.as-confluent": "true",
            ".apicurio.registry.use-id": "contentId",
            ".apicurio.registry.headers.enabled": "false",
        }
        both = {f"{side}.converter{name}": setting for side in ("key", "value") for name, setting in one.items()}
        return {**both, "schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"}


def _java() -> Path:
    java = find_java()
    if java is None:
        raise Missing(f"needs Java {MINIMUM} or newer")
    return java


def _jars() -> tuple[Path, Path]:
    """Folders of the worker's jars and of the connectors' and converters', which the compose file uses too."""
    pom = Xml.parse(_POM).getroot()
    versions = {f"${{{p.tag}}}": p.text or "" for p in pom.find("properties") or ()}
    plugins = [
        Archive(
            d.findtext("groupId", ""),
            d.findtext("artifactId", ""),
            versions[d.findtext("version", "")],
        )
        for d in pom.findall("dependencies/dependency")
    ]
    worker = [Archive(_KAFKA, name, KAFKA_VERSION) for name in ("connect-runtime", "connect-json")]
    label = "-".join(sorted({archive.version for archive in plugins}))
    try:
        return (
            fetched(f"connect-{KAFKA_VERSION}", [*worker, LOGGING], _java()),
            # The worker has Kafka's own classes; a second copy would hide them.
            fetched(f"connect-plugins-{label}", plugins, _java(), without=[_KAFKA, "org.slf4j"]),
        )
    except (ArchivesUnavailable, OSError) as error:
        raise Missing(str(error)) from error


def _registry() -> Path:
    """The program's jar, unpacked beside its archive once."""
    version = next(a.text for a in Xml.parse(_POM).getroot().iter() if a.tag.endswith("apicurio.version")) or ""
    archive = Archive("io.apicurio", "apicurio-registry-app", version, "tar.gz", "all")
    try:
        folder = fetched(f"apicurio-{version}", [archive], _java())
        if not (unpacked := folder / "app").exists():
            fresh = Path(tempfile.mkdtemp(dir=folder))
            with tarfile.open(folder / archive.file) as packed:
                packed.extractall(fresh, filter="data")
            os.rename(fresh, unpacked)
    except (ArchivesUnavailable, OSError) as error:
        raise Missing(str(error)) from error
    return next(unpacked.glob("*-runner.jar"))


def _answers(url: str) -> bool:
    try:
        _ask("GET", url)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
    return True


def _ask(method: str, url: str, body: Mapping[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if method == "GET":
            raise
        with error:
            words = error.read().decode()[:2000]
        raise RuntimeError(f"{method} {url}: {error.code} {words}") from error
