"""A stream that is resumed reads its file again."""

import pytest

from ch_sink.config import Config
from ch_sink.errors import ConfigError
from ch_sink.wiring import crew as configurations
from ch_sink.wiring.crew import Configurations


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
    assert "a goes on with the configuration it has: a.yaml line 3" in caplog.text


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
