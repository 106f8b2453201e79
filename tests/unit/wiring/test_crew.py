"""The streams of a running job: their configurations, and what each costs."""

import os
import time
from pathlib import Path

import pytest

from ch_sink.config import Config, expand, load_job
from ch_sink.errors import ConfigError
from ch_sink.spark.application import Application
from ch_sink.stream.roster import Roster
from ch_sink.wiring import crew as configurations
from ch_sink.wiring.crew import Configurations, Crew, Observers
from ch_sink.wiring.process import Stop
from ch_sink.wiring.streams import SharedTopics, members_of


def config(table: str, **more: object) -> Config:
    return Config.model_validate(
        {
            "kafka": {"topic": f"t.{table}", "bootstrap.servers": "h:1"},
            "clickhouse": {"url": "http://h:8123", "table": table},
            "stream": table,
            **more,
        }
    )


class Files:
    """The files of a job, as they are now."""

    def __init__(self, *configs: Config) -> None:
        self.now, self.reads = list(configs), 0

    def __call__(self) -> list[Config]:
        self.reads += 1
        return self.now


@pytest.fixture(autouse=True)
def _each_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "_FRESH", 0.0)


def test_only_a_resumed_stream_reads_its_file_again() -> None:
    files, changed = Files(config("a"), config("b")), []
    held = Configurations(files.now, files, changed.append)
    files.now = [config("a", evolve="ignore"), config("b", evolve="ignore")]
    assert held.of("a").evolve == "fail"
    held.outdated("a")
    assert held.of("a").evolve == "ignore"
    assert held.of("a").evolve == "ignore"
    assert held.of("b").evolve == "fail"
    assert (changed, files.reads) == ([files.now[0]], 1)


def test_a_file_that_is_the_same_changes_nothing() -> None:
    files, changed = Files(config("a")), []
    held = Configurations(files.now, files, changed.append)
    held.outdated("a")
    held.of("a")
    assert (files.reads, changed) == (1, [])


def test_a_file_that_is_wrong_by_now_changes_nothing_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> list[Config]:
        raise ConfigError("a.yaml line 3: evolve: no such choice")

    held = Configurations([config("a")], wrong)
    held.outdated("a")
    assert held.of("a") == config("a")
    assert "a keeps its current configuration: a.yaml line 3" in caplog.text


def test_streams_that_are_resumed_together_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "_FRESH", 60.0)
    files = Files(*(config(f"t{n}") for n in range(50)))
    held = Configurations(files.now, files)
    for n in range(50):
        held.outdated(f"t{n}")
    for n in range(50):
        held.of(f"t{n}")
    assert files.reads == 1


def test_the_fingerprint_changes_with_every_key_but_secrets() -> None:
    """It lies in the ledger, where a digest of a weak password would give it away."""
    plain = config("a")
    assert plain.fingerprint() == config("a").fingerprint()
    place = {"url": "http://h:8123", "table": "a"}
    assert config("a", evolve="ignore").fingerprint() != plain.fingerprint()
    assert config("a", clickhouse={**place, "username": "b"}).fingerprint() != plain.fingerprint()
    passwords = [config("a", clickhouse={**place, "password": f"hunter{n}"}) for n in (2, 3)]
    keys = [config("a", spark={"conf": {"spark.hadoop.fs.s3a.secret.key": f"hunter{n}"}}) for n in (2, 3)]
    for one, other in (passwords, keys):
        assert one.fingerprint() == other.fingerprint()
        assert "hunter" not in f"{one!r}{one.model_dump_json()}"


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
    application = Application({}, None, None, Stop())
    crew = Crew(application.add, SharedTopics(), None, Observers())
    streams = [crew.stream(config) for config in found.streams]
    roster = Roster(members_of(found.streams), "run")
    kept = resident() - before
    assert (len(streams), len(roster), crew.made) == (TOPICS, TOPICS, TOPICS)
    assert kept / TOPICS < 20_000
    assert time.process_time() - began < 30  # about four
