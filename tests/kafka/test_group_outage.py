"""Commits of group offsets go on over outages of the broker; librdkafka used to abort the process."""

import subprocess
import sys

import pytest

from tests.support.sink import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.long]

_SCRIPT = """
import threading, time
from ch_sink.kafka.group import GroupCommits
from ch_sink.local.kafka import LocalKafka
with LocalKafka() as broker:
    broker.create_topic("t", 2)
    commits, end, n = GroupCommits({"bootstrap.servers": broker.bootstrap}, every=EVERY), threading.Event(), 0
    def put():
        global n
        while not end.wait(0.05):
            n += 1
            for i in range(5):
                commits.put(f"g{i}", "t", {0: n, 1: n})
    threading.Thread(target=put, daemon=True).start()
    time.sleep(3)
    for _ in range(4):
        broker.halt(graceful=False)
        time.sleep(2.5)
        broker.start()
        time.sleep(5)
    end.set()
    time.sleep(0.2)
    commits.close()
    print("survived", commits.flush())
"""


@pytest.mark.parametrize("every", [0.001, 0.2])
def test_a_broker_that_goes_away_and_comes_back_does_not_end_the_process(every: float) -> None:
    """If commits were asked of absent brokers, an assertion of librdkafka would fail (its issue 4605)."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.replace("EVERY", str(every))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "survived True\n"
