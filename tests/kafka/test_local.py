"""The local Kafka comes and goes cleanly, and says why it is not a broker."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ch_sink.errors import BrokerUnavailable, KafkaError
from ch_sink.local.kafka import KAFKA_VERSION, LocalKafka
from ch_sink.spark.installed import find_java, java_version
from tests.support.choose import each_value
from tests.support.kafka import fresh_topic
from tests.support.sink import ROOT

pytestmark = pytest.mark.kafka


def _is_up(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _goes_down(address: str) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not _is_up(address):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.long
@pytest.mark.parametrize(("kind", "end"), each_value(("auto", "mock"), (signal.SIGKILL, signal.SIGTERM)))
def test_it_ends_with_the_process_that_started_it(kind: str, end: signal.Signals) -> None:
    program = (
        "import time; from ch_sink.local.kafka import LocalKafka\n"
        f"kafka = LocalKafka(kind={kind!r}); kafka.start(); print(kafka.bootstrap, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    address = parent.stdout.readline().strip()
    assert _is_up(address)
    parent.send_signal(end)
    parent.wait(20)
    parent.stdout.close()
    assert _goes_down(address)


@pytest.mark.long
def test_stopping_removes_daemon_and_folder() -> None:
    with LocalKafka() as kafka:
        address, folder = kafka.bootstrap, kafka.folder
        assert (folder / "broker.log").exists()
    assert _goes_down(address)
    assert not folder.exists()


def test_without_java_it_is_the_mock_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ch_sink.spark.installed._FOLDERS", ())
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_java() is None
    with LocalKafka() as kafka:
        assert kafka.kind == "mock"
        assert kafka.why == "no Java 17 or newer was found"
        kafka.create_topic("t", 7)
    with pytest.raises(BrokerUnavailable, match="no Java 17") as raised, LocalKafka(kind="kafka"):
        pass
    assert raised.value.hint == "Install one or set JAVA_HOME."


def test_without_its_jars_and_any_way_to_get_them_it_is_the_mock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_java() is None:
        pytest.skip("needs Java 17 or newer")
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path))
    monkeypatch.setattr("ch_sink.local.maven.shutil.which", lambda _name: None)
    monkeypatch.setattr("ch_sink.local.maven.importlib.util.find_spec", lambda _name: None)
    with LocalKafka() as kafka:
        assert kafka.kind == "mock"
        assert kafka.why is not None
        assert "could not be fetched: ArchivesUnavailable: PySpark brings no Ivy" in kafka.why
    assert [path.name for path in tmp_path.iterdir()] == [f"kafka-{KAFKA_VERSION}.lock"], "nothing half fetched is left"


@pytest.mark.long
def test_a_folder_keeps_its_topics(tmp_path: Path) -> None:
    with LocalKafka(path=tmp_path) as kafka:
        if kafka.kind != "kafka":
            pytest.skip(f"needs a real broker: {kafka.why}")
        kafka.create_topic("kept", 2)
    assert tmp_path.exists()
    with LocalKafka(path=tmp_path) as again, pytest.raises(KafkaError, match="kept could not be created"):
        again.create_topic("kept", 2)


def test_a_topic_that_exists_is_refused(kafka: LocalKafka) -> None:
    topic = fresh_topic()
    kafka.create_topic(topic, 1)
    with pytest.raises(KafkaError, match=topic):
        kafka.create_topic(topic, 1)


def test_java_home_wins_and_old_or_broken_ones_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def java(name: str, version: str) -> Path:
        path = tmp_path / name / "bin" / "java"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
        path.chmod(0o755)
        return path

    old, new, broken = java("old", "1.8.0_412"), java("new", "21.0.3"), tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("no program")
    os.chmod(broken, 0o755)
    assert (java_version(old), java_version(new), java_version(broken)) == (8, 21, None)
    monkeypatch.setattr("ch_sink.spark.installed._FOLDERS", (str(tmp_path / "*"),))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java() == new
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert find_java() == new
