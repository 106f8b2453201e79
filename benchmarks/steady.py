"""A steady load of events, and a job in a process of its own that carries them."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

__all__ = ["COLUMNS", "Load", "process_tree", "processor_time", "running_job"]

_ROOT = Path(__file__).resolve().parent.parent
_QUEUE = 50_000
"""Events that the producer holds at most."""
COLUMNS = (
    "id Int64, status String, made Int64, seen DateTime64(3) MATERIALIZED now64(3), _version UInt128, _is_deleted UInt8"
)
"""Of a table for the load; ``seen`` is the server's clock when the insert begins."""


class Load:
    """Produces made-up orders with consecutive ids, each with the moment of its making in the column ``made``."""

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        partitions: Sequence[int] = (0,),
        sent: int = 0,
        status: str = "paid",
    ) -> None:
        """``sent``: the last id that was given before. ``status``: of all its orders."""
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._places = [(topic, partition) for topic in topics for partition in partitions]
        self._rng = random.Random(7)
        self.sent, self._status = sent, status

    def spread(self, count: int) -> None:
        """So many events, equally over all partitions."""
        for number in range(count):
            self._send(*self._places[number % len(self._places)])
            if not number % _QUEUE:
                self._producer.flush(60)
        self._producer.flush(60)

    def steady(self, rate: int, seconds: float) -> None:
        """Events of drawn partitions at this rate."""
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead = began + number / rate - time.monotonic()
            if ahead > 0.002:
                self._producer.poll(ahead)
            self._send(*self._rng.choice(self._places))
        self._producer.flush(60)

    def _send(self, topic: str, partition: int) -> None:
        self.sent += 1
        ms = time.time_ns() // 10**6
        value = (
            f'{{"before":null,"after":{{"id":{self.sent},"status":"{self._status}","made":{ms}}},"source":{{"version":"3.5.0.Final",'
            f'"connector":"mysql","name":"fleet","ts_ms":{ms},"snapshot":"false","db":"shop","sequence":null,'
            f'"table":"{topic.rpartition(".")[2]}","server_id":1,"gtid":null,"file":"binlog.000003",'
            f'"pos":{self.sent * 100},"row":0,"thread":4,"query":null}},"transaction":null,"op":"c","ts_ms":{ms}}}'
        )
        self._producer.produce(topic, value, f'{{"id":{self.sent}}}', partition)
        self._producer.poll(0)


@contextmanager
def running_job(config: Path, log: Path, overrides: list[str], *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`ch_sink run` with these settings, and more options, in a process of its own; it is ended in order."""
    words = [*(word for override in overrides for word in ("--set", override)), *more]
    with log.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-m", "ch_sink", "run", str(config), *words],
            cwd=_ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()


def process_tree(root: int) -> list[int]:
    """The process and all that it started."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(process.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def processor_time(tree: list[int]) -> float:
    """Processor seconds so far."""
    ticks = 0
    for process in tree:
        try:
            fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
