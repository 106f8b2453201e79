"""Nothing that a run leaves behind holds a secret: logs, Spark's event logs, tables, figures, outputs."""

import json
import os
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus
from urllib.request import urlopen

import pytest
import yaml

from ch_sink.clickhouse import Client
from ch_sink.config import load
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.support.endpoint import settings_for
from tests.support.fixtures import registry_schemas, topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.secure import KEY, REGISTRY, SCRAM, secure_kafka, secure_registry, tls_in_front
from tests.support.sink import ROOT, command

LAUNCHED = {"SPARK_SUBMIT_OPTS": "-Dmine=1"}
pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

CLICKHOUSE, MASK = "clickhouse-pa55word", "mask-pa55word"
STREAM, TABLE = "postgres-avro", "kc"


def secrets() -> list[bytes]:
    """The secrets, as they are and as JSON, URLs and base64 write them."""
    plain = [SCRAM, REGISTRY, REGISTRY.partition(":")[2], KEY, CLICKHOUSE, MASK]
    found = set(plain)
    for secret in plain:
        found |= {json.dumps(secret)[1:-1], quote(secret), quote_plus(secret)}
    encoded = {b64encode(text.encode()) for text in (*plain, f"default:{CLICKHOUSE}")}
    return sorted({text.encode() for text in found} | encoded)


def leaks(where: str, content: bytes) -> list[str]:
    return [f"{where}: {secret.decode()}" for secret in secrets() if secret in content]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Client]]:
    """A configuration whose every connection needs a secret, the folder of the run, and ClickHouse without TLS."""
    hidden, left = tmp_path_factory.mktemp("hidden"), tmp_path_factory.mktemp("left")
    with secure_kafka(hidden) as secure, EmbeddedClickHouse(password=CLICKHOUSE) as clickhouse:
        server, mine = secure.authority.issue("servers"), secure.authority.issue("mine")
        topic = fresh_topic("secrets")
        secure.kafka.create_topic(topic, 3)
        produce(secure.kafka, topics(STREAM)[topic_of(STREAM, TABLE)], topic)
        (hidden / "clickhouse").write_text(CLICKHOUSE + "\n")
        with (
            secure_registry(secure, registry_schemas("postgres"), server) as registry,
            tls_in_front(clickhouse.port, server, secure.authority) as port,
        ):
            config = {
                "kafka": {"topic": topic, **secure.properties("scram"), **registry},
                "clickhouse": {
                    "url": f"https://127.0.0.1:{port}",
                    "database": "shop",
                    "table": "kc",
                    "password_file": str(hidden / "clickhouse"),
                    "ca_cert": str(secure.authority.ca),
                    "client_cert": str(mine.certificate),
                    "client_cert_key": str(mine.key),
                },
                "format": "avro",
                "columns": {"mask_key": MASK},
                "spark": {"conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{left}/events"}},
            }
            (left / "events").mkdir()
            file = hidden / "kc.yaml"
            file.write_text(yaml.safe_dump(config))
            client = Client(settings_for(clickhouse.url, password=CLICKHOUSE))
            yield file, left, client
            client.close()


@pytest.mark.long
def test_a_run_over_tls_leaves_no_secret_behind(stand: tuple[Path, Path, Client]) -> None:
    file, left, client = stand
    assert all(leaks("what is looked for", secret.encode()) for secret in (SCRAM, REGISTRY, KEY, CLICKHOUSE, MASK))
    environment = {"SPARK_LOCAL_DIRS": str(left / "spark")}
    outputs: dict[str, str] = {}
    for words in (
        ("init", file, "--apply"),
        ("--debug", "check", file),
        ("--debug", "run", file, "--once", "-v", "--log-file", left / "run.log"),
        ("status", file, "--json"),
        ("dead-letters", "list", file, "--json"),
    ):
        done = command(*words, **environment)
        name = " ".join(map(str, words))
        outputs[name] = done.stdout + done.stderr
        assert done.returncode == 0, (name, outputs[name])
    assert client.rows("SELECT count() AS n FROM shop.kc")[0]["n"] > 0
    assert client.rows("SELECT count() AS n FROM shop.ch_sink_ledger WHERE entry = 'result'")[0]["n"] > 0

    found = [leak for name, text in outputs.items() for leak in leaks(f"output of {name}", text.encode())]
    files = [path for path in left.rglob("*") if path.is_file()]
    assert any("events" in str(path) for path in files), files
    for path in files:
        found += leaks(str(path), path.read_bytes())
    for row in client.rows("SELECT name FROM system.tables WHERE database = 'shop' AND engine != 'View'"):
        table = row["name"]
        rows = client.rows(f"SELECT toString(tuple(*)) AS t FROM shop.`{table}`")
        found += leaks(f"table {table}", json.dumps([r["t"] for r in rows], ensure_ascii=False).encode())
    config = load(file, environ={})
    found += leaks("repr", repr(config).encode())
    found += leaks("the fingerprint and dump", f"{config.fingerprint()} {config.model_dump_json()}".encode())
    found += leaks("the policy", repr(config.policy()).encode())
    assert found == []


@pytest.mark.long
def test_processes_and_metrics_of_a_running_job_show_no_secret(stand: tuple[Path, Path, Client]) -> None:
    file, left, _ = stand
    log = left / "live.log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command_line = ["run", str(file), "-v", "--set", f"metrics={address}"]
    with log.open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, "-m", "ch_sink", "--debug", *command_line], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 120
        while not (served := served_at(address)):
            assert time.monotonic() < deadline, log.read_text()
            assert job.poll() is None, log.read_text()
            time.sleep(0.2)
        assert b"ch_sink_" in served
        found: list[str] = []
        for _ in range(10):
            found += leaks("metrics", served_at(address))
            for pid in _family(job.pid):
                found += leaks(f"command line of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes())
                found += leaks(f"environment of {pid}", Path(f"/proc/{pid}/environ").read_bytes())
            time.sleep(0.5)
    finally:
        job.terminate()
        job.wait(60)
    assert [*found, *leaks("log", log.read_bytes())] == []


def served_at(address: str) -> bytes:
    """The metrics, empty while nothing answers."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def _family(pid: int) -> list[int]:
    """The process and those that it started."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            below.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += below.get(one, [])
    return found


_PROPERTIES = """
import os, sys
from pathlib import Path
from ch_sink.spark.session import build_session, start_jvm

conf = {
    "spark.hadoop.fs.s3a.secret.key": "s3-pa55word \\\\ = é",
    "spark.hadoop.fs.azure.account.key.shop": "azure-pa55word",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.dir": f"file://{sys.argv[1]}", "spark.driver.memory": "700m",
}
started = start_jvm(master="local[1]", conf=conf)
session = build_session(master="local[1]", conf=conf, started=started)
found = session.sparkContext.getConf()
assert found.get("spark.hadoop.fs.s3a.secret.key") == conf["spark.hadoop.fs.s3a.secret.key"]
assert session._jvm.java.lang.System.getProperty("spark.hadoop.fs.azure.account.key.shop") == "azure-pa55word"
assert session._jvm.java.lang.Runtime.getRuntime().maxMemory() < 800 << 20
lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline")]
assert any(b"SparkSubmit" in line for line in lines)
left = [str(p) for p in started.jvm._folder.rglob("*.properties")]
session.stop()
started.jvm.end()
print(left, b"pa55word" in b"".join(lines), repr(started).count("pa55word"))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, marks=pytest.mark.long, id="direct"),
        pytest.param({"SPARK_SUBMIT_OPTS": "-Dmine=1"}, id="launched"),
    ],
)
def test_spark_s_properties_are_on_no_command_line_and_in_no_event_log(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """An object store's key among them, that of Azure too, which Spark's own filter does not know."""
    script, events = tmp_path / "start.py", tmp_path / "events"
    script.write_text(_PROPERTIES)
    events.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(events)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[] False 0", done.stderr
    logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert any(b"spark.hadoop.fs.s3a.secret.key" in log for log in logs)
    assert not any(b"pa55word" in log for log in logs)
