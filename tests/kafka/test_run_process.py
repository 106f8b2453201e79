"""`ch_sink run` as a process: what it prints, and how a signal ends it."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import ch_sink
from ch_sink.cli import main
from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

STREAM = "mariadb-json_schema-kc"
PATIENCE = 180.0
"""Seconds until a process that does not do what is expected fails the test."""


@dataclass
class Running:
    """A process and all that it starts, found by a mark in the environment."""

    process: "subprocess.Popen[bytes]"
    mark: str
    out: Path

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def children(self) -> list[str]:
        """Command lines of the processes that it started, however deep."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != self.process.pid and self.mark in (folder / "environ").read_text(
                    errors="ignore"
                ):
                    command = (folder / "cmdline").read_text(errors="ignore").replace("\0", " ")
                    if command:  # a process that has ended and was not waited for has none
                        found.append(command)
            except OSError:
                continue
        return found

    def takes_signals(self) -> bool:
        """Whether its handlers are installed: Python itself has none for SIGTERM."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) & 1 << (signal.SIGTERM - 1))

    def wait_until(self, seen: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not seen():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        """Send the signal to the whole group, as a terminal does; returns the exit code once nothing is left."""
        os.killpg(self.process.pid, number)
        code = self.process.wait(PATIENCE)
        deadline = time.monotonic() + 10
        while left := self.children():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        return code


@pytest.fixture
def config(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Iterator[str]:
    topic = fresh_topic("kc")
    kafka.create_topic(topic, 3)
    produce(kafka, topics(STREAM)[topic_of(STREAM, "kc")], topic)
    path = tmp_path / "kc.yaml"
    path.write_text(
        f"kafka: {{topic: {topic}, bootstrap.servers: '{kafka.bootstrap}'}}\n"
        f"clickhouse: {{url: '{clickhouse.url}', database: {database}, table: kc}}\n"
    )
    yield str(path)
    for row in client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'"):
        client.command(f"DROP TABLE {database}.{row['name']}")


def init(config: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["init", config, "--apply"])
    assert not left.value.code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*arguments: str) -> Running:
        mark, out = f"mark-{uuid.uuid4().hex}", tmp_path / f"out-{len(started)}"
        environment = {name: v for name, v in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        with out.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, "CH_SINK_TEST_MARK": mark},
                start_new_session=True,
            )
        started.append(Running(process, mark, out))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait()


COMMANDS = {"run": ("-m", "ch_sink", "run"), "job": ("-m", "ch_sink.spark.job", "--config")}

_OURS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    (reading|opening|starting|catching up|live)\b.*"
    r"|\S+\.kc  batch \d+  .* lag \d+"
    r"|table +batches +records .*"
    r"|\S+\.kc +\d.*"
    r"|"
)


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "job"])
def test_nothing_is_printed_but_the_product_s_own_lines(
    command: str, config: str, start: Callable[..., Running]
) -> None:
    init(config)
    running = start(*COMMANDS[command], config, "--once")
    assert running.process.wait(PATIENCE) == 0, running.text()
    lines = running.text().splitlines()
    assert [line for line in lines if not _OURS.fullmatch(line)] == []
    assert any(re.search(r"\.kc +(1 +39\b|batch 1 +39 records)", line) for line in lines), lines
    doing = [line.split("INFO")[1].split()[0] for line in lines if "INFO" in line]
    assert doing[0] == "reading"  # what follows is shown where it takes a moment
    assert "starting" in doing
    assert running.children() == []


MOMENTS: dict[str, Callable[[Running], None]] = {
    "imports": lambda running: running.wait_until(running.takes_signals),
    "JVM start": lambda running: running.wait_until(lambda: [c for c in running.children() if "SparkSubmit" in c]),
    "first worker": lambda running: running.wait_until(lambda: [c for c in running.children() if "-m pyspark" in c]),
    "idle": lambda running: running.wait_until(lambda: "lag 0" in running.text()),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "moment", "number"),
    [
        ("run", "imports", signal.SIGINT),
        ("run", "JVM start", signal.SIGINT),
        pytest.param("run", "first worker", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("run", "idle", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("job", "JVM start", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("job", "idle", signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_it_with_its_code_and_nothing_is_left(
    command: str, moment: str, number: signal.Signals, config: str, start: Callable[..., Running]
) -> None:
    init(config)
    running = start(*COMMANDS[command], config)
    MOMENTS[moment](running)
    assert running.end(number) == 128 + number, running.text()
    shown = running.text()
    assert "Stopping." in shown
    foreign = [line for line in shown.splitlines() if not _OURS.fullmatch(line) and not line.startswith("Stopping.")]
    assert foreign == []
    if moment == "idle" and command == "run":
        assert re.search(r"^table +batches", shown, re.MULTILINE), "a summary"


@pytest.mark.long
@pytest.mark.parametrize("step", ["1.", "3.", "4."])
def test_a_signal_ends_the_demo_and_its_servers(
    step: str, start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    running = start("-u", "-m", "ch_sink", "demo")
    running.wait_until(lambda: f"{step} " in running.text())
    assert running.end(signal.SIGINT) == 130, running.text()
    assert "Traceback" not in running.text()
    assert list(folder.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_under_spark_submit(
    number: signal.Signals, config: str, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    init(config)
    monkeypatch.setenv("PYTHONPATH", str(Path(ch_sink.__file__).parent.parent))
    job = Path(ch_sink.__file__).parent / "spark" / "job.py"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    running = start(
        "-c",
        f"import os; os.environ['PYSPARK_PYTHON'] = {sys.executable!r}\n"
        f"os.execv({str(submit)!r}, ['spark-submit', {str(job)!r}, '--config', {config!r}])",
    )
    MOMENTS["idle"](running)
    assert running.end(number) == 128 + number, running.text()
    assert "Traceback" not in running.text()


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(config: str, start: Callable[..., Running]) -> None:
    init(config)
    running = start(*COMMANDS["run"], config)
    MOMENTS["JVM start"](running)
    os.killpg(running.process.pid, signal.SIGINT)
    began = time.monotonic()
    assert running.end(signal.SIGINT) == 130
    assert time.monotonic() - began < 10
    assert "Traceback" not in running.text()


@pytest.mark.long
def test_a_missing_table_is_reported_without_waiting_for_spark(
    config: str, start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This Java starts nothing; it is gone when the job has ended."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    version = """case "$*" in *-version*) echo 'openjdk version "17.0.9"' >&2; exit 0;; esac"""
    java.write_text(f"#!/bin/sh\n{version}\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    running = start(*COMMANDS["run"], config)
    assert running.process.wait(PATIENCE) == 1
    assert "kc does not exist" in running.text()
    assert running.children() == []
