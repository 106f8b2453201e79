"""A Spark standalone cluster on this machine: a master and workers, from the jars that PySpark brings."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from ch_sink.local import free_port
from ch_sink.spark.installed import require_java
from tests.real.stand.daemon import Daemon

_SPARK = Path(pyspark.__file__).parent


@dataclass
class Cluster:
    """A running cluster."""

    url: str
    folder: Path
    daemons: dict[str, Daemon]
    """The master and the workers."""

    def executors(self) -> dict[int, str]:
        """Processes of the executors of all applications, and each one's worker."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command, place = (process / "cmdline").read_bytes(), Path(os.readlink(process / "cwd"))
                if self.folder in place.parents and b"CoarseGrainedExecutorBackend" in command:
                    found[int(process.name)] = place.relative_to(self.folder).parts[0]
        return found

    def pythons(self) -> set[str]:
        """The Pythons that the executors' workers run, as they were called."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if self.folder in Path(os.readlink(process / "cwd")).parents and b"ch_sink.spark.daemon" in words:
                    found.add(words[0].decode())
        return found

    @property
    def submit(self) -> Path:
        """The command ``spark-submit``."""
        return _SPARK / "bin" / "spark-submit"

    def kill_executor(self) -> int:
        """Kill one executor as the kernel's out-of-memory killer would; returns its process."""
        process = min(self.executors())
        os.kill(process, signal.SIGKILL)
        return process

    def kill(self, part: str) -> None:
        """Kill the ``master``, or a worker such as ``worker-0`` with its executors."""
        self.daemons[part].kill()
        for process, worker in self.executors().items():
            if worker == part:
                os.kill(process, signal.SIGKILL)


def children(pid: int) -> dict[int, bytes]:
    """The processes below this one, each with its command line."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, bytes] = {}
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            with suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes()
    return found


@contextmanager
def cluster(workers: int, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """Start a master and so many workers."""
    folder, port, page = Path(tempfile.mkdtemp(prefix="ch_sink-cluster-")), free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    launch = ["/bin/bash", str(_SPARK / "bin" / "spark-class")]
    home = str(require_java().parent.parent)
    environ = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(_SPARK),
        "JAVA_HOME": home,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with ExitStack() as parts:
        parts.callback(shutil.rmtree, folder, ignore_errors=True)
        main = "org.apache.spark.deploy.master.Master"
        command = [*launch, main, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        master = Daemon("master", folder, command, environ)
        master.start(lambda: _listens(port))
        parts.callback(master.stop)
        daemons = {"master": master}
        for number in range(workers):
            main = "org.apache.spark.deploy.worker.Worker"
            options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"worker-{number}")]
            options += ["--host", "127.0.0.1", "--webui-port", str(free_port())]
            worker = Daemon(f"worker-{number}", folder, [*launch, main, *options, url], environ)
            worker.start(lambda worker=worker: "Successfully registered with master" in worker.tail(20_000))
            parts.callback(worker.stop)
            daemons[f"worker-{number}"] = worker
        yield Cluster(url, folder, daemons)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    time.sleep(0.1)
    return False
