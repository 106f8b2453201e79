"""What a job keeps in its driver for each stream before any is open."""

import os
import time
from pathlib import Path

import pytest

from ch_sink.config import expand, load_job
from ch_sink.spark.application import Application
from ch_sink.stream.roster import Roster
from ch_sink.wiring.crew import Crew, Observers
from ch_sink.wiring.process import Stop
from ch_sink.wiring.streams import SharedTopics, members_of

JOB = r"""
kafka: {bootstrap.servers: "localhost:9092", topics: 's\.p\..*'}
clickhouse: {url: "http://localhost:8123", database: shop, table: "{table}"}
"""
TOPICS = 10_000


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_ten_thousand_streams_take_seconds_and_some_kilobytes_each(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    began = time.process_time()
    before = resident()
    found = expand([load_job(path, (), {})], lambda _: [f"s.p.t{n}" for n in range(TOPICS)], lambda *_: set())
    application = Application(found.streams[:1], None, None, Stop())
    crew = Crew(application.add, SharedTopics(), None, Observers())
    streams = [crew.stream(config) for config in found.streams]
    roster = Roster(members_of(found.streams), "run")
    kept = resident() - before
    assert (len(streams), len(roster), crew.made) == (TOPICS, TOPICS, TOPICS)
    assert kept / TOPICS < 20_000
    assert time.process_time() - began < 30  # about four
