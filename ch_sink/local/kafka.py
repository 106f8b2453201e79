"""A Kafka on this machine for the demo and the tests: a broker if one can be started, else a mock cluster.

The broker is Kafka 4.2 in KRaft mode, broker and controller in one process, bound to loopback. It needs Java 17 and its
jars (from the cache folder or Maven Central). `daemons` lists what the mock cluster lacks.
"""

import atexit
import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import ch_sink
from ch_sink.errors import BrokerUnavailable, KafkaError
from ch_sink.local import free_port
from ch_sink.local.maven import Archive, ArchivesUnavailable, fetched
from ch_sink.spark.installed import MINIMUM, find_java

KAFKA_VERSION = "4.2.0"
LOGGING = Archive("org.slf4j", "slf4j-simple", "1.7.36")
"""Without it Kafka's log vanishes."""

_START_SECONDS = 120.0
_STOP_SECONDS = 15.0
_FOREVER_MS = str(2**63 - 1)
_SMALL = ("-XX:+UseSerialGC",)
_QUICK = (*_SMALL, "-XX:TieredStopAtLevel=1")
"""For a broker that lives for minutes and moves little: optimised code would not pay for its compilation."""


def kafka_jars(java: Path) -> Path:
    """Folder that holds the broker's jars (46 files, 43 MB); fetches them if it does not exist yet.

    Raises ArchivesUnavailable, and OSError when the cache folder cannot be written.
    """
    return fetched(f"kafka-{KAFKA_VERSION}", [Archive("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), LOGGING], java)


class LocalKafka:
    """Starts a Kafka on free loopback ports and takes it down again; use it as a context manager.

    ``path`` is where the broker keeps its topics over restarts (a temporary one by default; the mock keeps nothing).
    ``kind`` "kafka" or "mock" demands one of the two, "auto" falls back to the mock and says so in ``why``.
    ``lasting``: it runs long under load, so that the Java machine is to optimise it, as it does in production.
    ``settings`` are further broker properties, ``listeners`` further listeners: name → security protocol; ``addresses``
    has their addresses. The mock has neither. The daemon ends with this process, however it ends.
    Raises BrokerUnavailable when the demanded kind cannot be started.
    """

    kind: Literal["kafka", "mock"]
    bootstrap: str
    """Address for ``bootstrap.servers``."""

    def __init__(
        self,
        *,
        path: Path | None = None,
        kind: Literal["auto", "kafka", "mock"] = "auto",
        heap_mb: int = 512,
        lasting: bool = False,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        self.addresses: dict[str, str] = {}
        """Addresses of the further listeners, once the broker has started."""
        self._listeners = dict(listeners or {})
        self.why: str | None = None
        """The reason for the mock cluster instead of a broker; None for a broker, or if the mock was requested."""
        self._wanted = kind
        self._heap_mb, self._lasting = heap_mb, lasting
        self._settings = dict(settings or {})
        self._own_folder = path is None
        self._path = path
        self._daemon: subprocess.Popen[str] | None = None
        self._ports: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Folder of the daemon's files and of its log, ``broker.log``."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="ch_sink-kafka-"))
        return self._path

    def start(self) -> None:
        """Start and wait until it answers; after ``halt`` on the same ports, with the same topics."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atexit.register(self.stop)
        if self._wanted != "mock":
            try:
                self._start_broker()
            except (BrokerUnavailable, ArchivesUnavailable, OSError) as error:
                self._end_daemon(graceful=False)
                if self._wanted == "kafka":
                    raise BrokerUnavailable(
                        f"no Kafka broker on this machine: {error}", hint=getattr(error, "hint", None)
                    ) from error
                self.why = str(error)
            else:
                self.kind = "kafka"
                return
        self._start_mock()
        self.kind = "mock"

    def halt(self, *, graceful: bool = True) -> None:
        """End the daemon and keep its files: a broker that is down. ``start`` brings it back."""
        self._end_daemon(graceful=graceful)

    def stop(self) -> None:
        """End the daemon and remove its files, unless they are in the caller's folder."""
        atexit.unregister(self.stop)
        self._end_daemon(graceful=not self._own_folder)
        if self._own_folder and self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None

    def create_topic(self, name: str, partitions: int = 3, config: Mapping[str, str] | None = None) -> None:
        """Create a topic. ``config`` (topic properties) has no effect on the mock. Raises KafkaError if it exists."""
        if self.kind == "mock":
            answer = self._ask(f"topic {name} {partitions}")
            if answer != "ok":
                raise KafkaError(f"topic {name} could not be created: {answer}")
            return
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        try:
            admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[name].result(30)
        except KafkaException as error:
            raise KafkaError(f"topic {name} could not be created: {error.args[0].str()}") from error
        # The controller answers before the broker knows the topic, although both are one process.
        deadline = time.monotonic() + 30
        while not _ready(admin, name, partitions):
            if time.monotonic() > deadline:
                raise KafkaError(f"topic {name} was created but has no leaders after 30 seconds")
            time.sleep(0.02)

    # -- the broker

    def _start_broker(self) -> None:
        java = find_java()
        if java is None:
            raise BrokerUnavailable(f"no Java {MINIMUM} or newer was found", hint="Install one or set JAVA_HOME.")
        classpath = f"{kafka_jars(java)}/*"
        restarted = self._ports is not None
        for attempt in range(3):
            broker_port, controller_port = self._ports or (free_port(), free_port())
            properties = self._write_properties(broker_port, controller_port)
            self._format(java, classpath, properties)
            options = [f"-Xmx{self._heap_mb}m", *(_SMALL if self._lasting else _QUICK)]
            self._spawn([str(java), *options, "-cp", classpath, "kafka.Kafka", str(properties)])
            self.bootstrap = f"127.0.0.1:{broker_port}"
            if self._answers():
                self._ports = (broker_port, controller_port)
                return
            self._end_daemon(graceful=False)
            # A free port may be taken between its choice and its use: another pair is worth a try.
            if restarted or attempt == 2 or "Address already in use" not in self._log_text():
                break
        raise BrokerUnavailable(f"the broker did not start: {self._last_error()}")

    def _write_properties(self, broker_port: int, controller_port: int) -> Path:
        self.addresses = {name: self.addresses.get(name) or f"127.0.0.1:{free_port()}" for name in self._listeners}
        more = "".join(f",{name}://{address}" for name, address in self.addresses.items())
        protocols = "".join(f",{name}:{protocol}" for name, protocol in self._listeners.items())
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}" + more,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker_port}{more}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}",
            "log.dirs": str(self.folder / "topics"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # Recorded streams carry the times of their recording: nothing may expire or be refused for them.
            "log.retention.ms": "-1",
            "log.message.timestamp.before.max.ms": _FOREVER_MS,
            "log.message.timestamp.after.max.ms": _FOREVER_MS,
            **self._settings,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={setting}\n" for name, setting in properties.items()), encoding="utf-8")
        return path

    def _format(self, java: Path, classpath: str, properties: Path) -> None:
        topics = self.folder / "topics"
        if (topics / "meta.properties").exists():
            return
        # The letter in front keeps the id from beginning with "-", which the tool takes for an option.
        cluster_id = "C" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        # What the tool writes besides the ids, the levels of Kafka's features, is kept: a second of each further start.
        kept = kafka_jars(java) / "bootstrap.checkpoint"
        if kept.is_file():
            topics.mkdir(exist_ok=True)
            shutil.copyfile(kept, topics / kept.name)
            (topics / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id=1\n")
            return
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
        ran = subprocess.run(
            [str(java), *_QUICK, "-cp", classpath, *tool],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_START_SECONDS,
        )
        if ran.returncode != 0:
            last = (ran.stdout + ran.stderr).strip().splitlines()[-1:]
            raise BrokerUnavailable(f"the broker's folder could not be formatted: {' '.join(last)}")
        with suppress(OSError):  # a cache that others have filled need not be writable
            shutil.copyfile(topics / kept.name, kept.with_name(f".{kept.name}-{os.getpid()}")).replace(kept)

    def _answers(self) -> bool:
        admin: AdminClient | None = None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._daemon is not None and self._daemon.poll() is None:
            if admin is None and not _listens(self.bootstrap):
                time.sleep(0.05)
                continue
            # Not before it listens: a refused client waits longer and longer before it tries again.
            admin = admin or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            try:
                if admin.list_topics(timeout=2).brokers:
                    return True
            except KafkaException:
                time.sleep(0.05)
        return False

    def _log_text(self) -> str:
        log = self.folder / "broker.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _last_error(self) -> str:
        lines = self._log_text().splitlines()
        errors = [line for line in lines if "ERROR" in line or "Exception" in line or line.startswith("Error")]
        return (errors or lines or ["it wrote no log"])[-1][:500]

    # -- the mock, and what both share

    def _start_mock(self) -> None:
        self._spawn([sys.executable, "-m", "ch_sink.local.daemons", "mock"], keeper=False)
        stdout = self._daemon.stdout if self._daemon else None
        address = stdout.readline().strip() if stdout else ""
        if not address:
            raise BrokerUnavailable(f"librdkafka's mock cluster did not start: {self._last_error()}")
        self.bootstrap = address

    def _ask(self, command: str) -> str:
        daemon = self._daemon
        if daemon is None or daemon.stdin is None or daemon.stdout is None or daemon.poll() is not None:
            raise BrokerUnavailable("the local Kafka is not running")
        daemon.stdin.write(command + "\n")
        daemon.stdin.flush()
        return daemon.stdout.readline().strip()

    def _spawn(self, command: list[str], *, keeper: bool = True) -> None:
        # A Java program does not watch its input, so the keeper does it. The mock watches its own.
        prefix = [sys.executable, "-m", "ch_sink.local.daemons", "keep"] if keeper else []
        root = str(Path(ch_sink.__file__).parent.parent)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        with (self.folder / "broker.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.PIPE,
                stdout=log if keeper else subprocess.PIPE,
                stderr=log,
                env=environ,
                text=True,
                start_new_session=True,
            )

    def _end_daemon(self, *, graceful: bool) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        if not graceful:
            # On Linux the kernel ends the broker together with the keeper; elsewhere the closed pipe does.
            daemon.kill() if sys.platform == "linux" else None
        if daemon.stdin is not None:
            daemon.stdin.close()
        try:
            daemon.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if daemon.stdout is not None:
            daemon.stdout.close()


def _ready(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=10).topics[topic]
    leaders = [partition.leader for partition in found.partitions.values() if partition.error is None]
    return found.error is None and len(leaders) == partitions and min(leaders) >= 0


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
