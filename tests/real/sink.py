"""The product beside the databases: its tables made by ``init``, its job as a process that can be killed."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ch_sink.cli import main
from tests.support.sink import ROOT, statuses


def init_and_check(config: Path) -> None:
    """``init --apply``, after which ``check`` finds nothing to complain of."""
    for words in (("init", str(config), "--apply"), ("check", str(config))):
        said = io.StringIO()
        with pytest.raises(SystemExit) as left, redirect_stdout(said), redirect_stderr(said):
            main(words)
        assert left.value.code in (0, None), f"{words[0]} {config}: {said.getvalue()}"


class Job:
    """``ch_sink run`` of several streams."""

    def __init__(self, configs: Sequence[Path], log: Path) -> None:
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ch_sink", "run", *map(str, configs)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Driver, JVM and workers at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self, seconds: float = 60.0) -> int:
        """As Ctrl-C does it; the exit code."""
        if self.lives():
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self._process.returncode)


def ends(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """Sum of the partitions' end offsets, by topic; 0 for one that is not there, or not led by anybody, yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "real-ends"})
    try:
        known = consumer.list_topics(timeout=20).topics
        return {
            topic: _end(consumer, topic, list(known[topic].partitions) if topic in known else []) for topic in topics
        }
    finally:
        consumer.close()


def _end(consumer: Consumer, topic: str, partitions: Sequence[int]) -> int:
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in partitions)
    except KafkaException:
        return 0


def caught_up(job: Job, configs: Sequence[Path], seconds: float) -> list[Any]:
    """The streams' status once none has anything left to read or waiting."""
    deadline = time.monotonic() + seconds
    while True:
        seen = statuses(configs)
        left = {s["table"]: s["lag"] for s in seen if s["lag"] != 0}
        if not left:
            return seen
        assert job.lives(), f"the job ended:\n{job.tail()}"
        assert time.monotonic() < deadline, f"not caught up: {left}\n{job.tail()}"
        time.sleep(1)
