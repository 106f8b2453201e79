"""``verify`` and ``repair`` as a user runs them, over a broker and the embedded engine."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.config import load
from ch_sink.decode.source_tables import RecordsOfTable
from ch_sink.kafka import KafkaSettings
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.order import State
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.trust.fold import Fold
from ch_sink.trust.purge import Purging
from ch_sink.trust.topic import KafkaTopic
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce, values
from tests.support.sink import config_file, inside, run_inline

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]
STREAM = "mariadb-json_schema-kc"


@pytest.fixture
def config(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Path:
    """A stream that has read the recorded key changes of MariaDB to their end."""
    topic = fresh_topic("kc")
    mock_kafka.create_topic(topic, 3)
    produce(mock_kafka, topics(STREAM)[topic_of(STREAM, "kc")], topic)
    made = config_file(tmp_path, mock_kafka, clickhouse, topic, "kc", database)
    assert inside("init", made, "--apply").returncode == 0
    return made


def verify(config: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = inside("verify", config, "--json", *more)
    assert done.stdout, done.stderr
    [stream] = json.loads(done.stdout)["streams"]
    return done.returncode, stream


def differences(config: Path) -> int:
    """Of the newest comparison, as `status` shows them."""
    [stream] = json.loads(inside("status", config, "--json").stdout)["streams"]
    return int(stream["compared"]["differences"])


def test_a_table_is_verified_found_wrong_and_repaired(
    config: Path, client: Client, database: str, tmp_path: Path
) -> None:
    refused = inside("verify", config)
    assert refused.returncode == 1
    assert "has read nothing of topic" in refused.stderr
    run_inline(config)
    code, report = verify(config)
    live = client.rows(f"SELECT count() AS n FROM {database}.kc_current")[0]["n"]
    assert (code, report["rows"], report["equal"], report["table"]) == (0, live, True, f"{database}.kc")
    client.command(
        f"INSERT INTO {database}.kc SELECT * REPLACE(concat(v, '!') AS v) "
        f"FROM (SELECT * FROM {database}.kc FINAL WHERE v IS NOT NULL ORDER BY id LIMIT 1)"
    )
    code, report = verify(config, "--html", str(tmp_path / "report.html"))
    assert (code, report["missing"], report["extra"], report["different"]) == (1, 0, 0, 1)
    [example] = report["examples"]
    assert example["kind"] == "different"
    assert set(example["key"]) == {"id", "k"}
    [source, table] = example["columns"]["v"]
    assert table == source + "!"
    page = (tmp_path / "report.html").read_text()
    assert "Some tables differ" in page
    assert table in page
    assert verify(config, "--columns", "id")[0] == 0
    assert verify(config, "--where", f"id != {example['key']['id']}")[0] == 0
    assert inside("repair", config).stdout.splitlines()[-1] == "  would repair 1 row; add --apply to write"
    assert verify(config)[0] == 1
    assert differences(config) == 1
    assert inside("repair", config, "--apply").stdout.splitlines()[-1] == "  repaired 1 row"
    assert differences(config) == 0
    assert verify(config)[0] == 0
    refused = inside("repair", config, "--against", f"{database}.kc_copy")
    assert (refused.returncode, "Use --against source or --against topic" in refused.stderr) == (2, True)
    assert client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%shadow%'") == []


@pytest.mark.long
def test_a_view_that_shows_other_values_than_the_table_is_named_and_renewed_by_a_resync(
    config: Path, client: Client, database: str
) -> None:
    """A column was altered by hand, and the view still shows its former type."""
    run_inline(config)
    client.command(f"ALTER TABLE {database}.kc MODIFY COLUMN v LowCardinality(Nullable(String))")
    assert "kc_current no longer fits the table: its column v is " in inside("verify", config).stdout
    assert verify(config)[1]["view"] != ""
    assert inside("resync", config, "--against", "topic", "--apply").returncode == 0
    assert verify(config)[1]["view"] == ""


@pytest.mark.long
def test_options_that_cannot_be_met_are_refused_before_anything_is_read(
    config: Path, client: Client, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(config)
    monkeypatch.setattr(Fold, "to", lambda *_: pytest.fail("the topic was read"))
    for condition in ("id = (", "nowhere = 1", "id = 1) OR (", "id = 1 --"):
        for command in ("verify", "repair"):
            done = inside(command, config, "--where", condition)
            assert (done.returncode, "next: Write SQL over its columns: id, k" in done.stderr) == (1, True), done.stderr
            assert f"--where {condition} is not a condition over `{database}`.`kc`" in done.stderr
    done = inside("verify", config, "--html", str(tmp_path / "nowhere" / "report.html"))
    assert (done.returncode, "next: Name a file" in done.stderr) == (2, True), done.stderr


def test_a_row_is_explained(config: Path, client: Client, database: str) -> None:
    run_inline(config)
    row = client.rows(f"SELECT id, k FROM {database}.kc_current ORDER BY id LIMIT 1")[0]
    done = inside("explain", config, json.dumps(row), "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [e["rule"] for e in shown["events"]].count("newer") == 1
    assert {int(r["id"]) for r in shown["stored"]} == {row["id"]}
    assert "newer" in inside("explain", config, json.dumps(row)).stdout
    assert "is not a JSON object" in inside("explain", config, "7").stderr
    assert "has no key column 'x'" in inside("explain", config, '{"x": 7}').stderr


@pytest.mark.long
def test_deleted_rows_are_purged_once_they_are_old_enough(config: Path, client: Client, database: str) -> None:
    run_inline(config)
    stored = f"SELECT count() AS n FROM {database}.kc"
    before = client.rows(stored)[0]["n"]
    assert "has no purge_after" in inside("purge", config).stderr
    assert "3600" in inside("purge", config, "--set", "purge_after=1m").stderr
    done = inside("purge", config, "--set", "purge_after=30d", "--apply", "--json")
    assert done.returncode == 0, done.stderr
    [stream] = json.loads(done.stdout)["streams"]
    assert (stream["rows"], stream["applied"]) == (0, True)  # the topic was written just now
    assert client.rows(stored)[0]["n"] == before


def test_a_job_purges_what_was_deleted_long_ago(
    config: Path, client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(config)
    settings = load(config).model_copy(update={"purge_after": 3600.0})
    marks = f"SELECT count() AS n FROM {database}.kc WHERE _is_deleted = 1"
    assert client.rows(marks)[0]["n"] > 0
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 7200)  # two hours later
    shown = f"SELECT * FROM {database}.kc_current ORDER BY ALL"
    before = client.rows(shown)
    Purging(lambda: [settings], lambda: {settings.stream_name}).step()
    assert client.rows(marks)[0]["n"] == 0
    assert client.rows(shown) == before


def test_only_the_events_of_the_streams_own_table_are_read(mock_kafka: LocalKafka) -> None:
    """A topic of several tables, as the stream with ``source_table: a`` sees it."""
    topic = fresh_topic("several")
    mock_kafka.create_topic(topic, 1)
    texts = [json.dumps({"op": "c", "source": {"table": name}, "after": {"id": i}}) for i, name in enumerate("abab")]
    produce(mock_kafka, values(topic, 0, texts))
    whole = KafkaTopic(KafkaSettings({"bootstrap.servers": mock_kafka.bootstrap}), topic, RecordsOfTable("a").among)
    table = TargetTable("default", "a", Engine(Family.REPLACING, "ReplacingMergeTree"), ())
    task = RangeTask("s", topic, "id", 0, table, 0, 4, State())
    assert [o for chunk in whole.chunks(task, 0) for o in chunk.records.offsets.tolist()] == [0, 2]
    earlier = whole.history(0)
    assert earlier is not None
    assert earlier.before(4, 10).offsets.tolist() == [0, 2]


def test_wrong_options_are_named(config: Path) -> None:
    run_inline(config)
    for words, said in (
        (("--columns", "nothing"), "no column 'nothing'"),
        (("--sample", "110%"), "--sample 110%"),
        (("--against", "rumour"), "--against rumour"),
    ):
        done = inside("verify", config, *words)
        assert done.returncode in (1, 2)
        assert said in done.stderr


@pytest.mark.long
def test_a_stream_that_cannot_be_compared_does_not_hold_up_the_others(
    config: Path,
    client: Client,
    database: str,
    tmp_path: Path,
    mock_kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
) -> None:
    """One has read nothing yet; that of the other is equal, and then not."""
    run_inline(config)
    topic = fresh_topic("unread")
    mock_kafka.create_topic(topic, 3)
    produce(mock_kafka, topics(STREAM)[topic_of(STREAM, "kc")], topic)
    unread = config_file(tmp_path, mock_kafka, clickhouse, topic, "unread", database)
    assert inside("init", unread, "--apply").returncode == 0
    done = inside("verify", unread, config, "--json", "--html", str(tmp_path / "report.html"))
    [equal, failed] = json.loads(done.stdout)["streams"]
    assert (done.returncode, equal["table"], equal["equal"]) == (1, f"{database}.kc", True)
    assert (failed["table"], set(failed)) == (f"{database}.unread", {"stream", "table", "error", "next"})
    assert "has read nothing of topic" in failed["error"]
    assert "1 streams failed" not in done.stderr
    assert "has read nothing of topic" in done.stderr
    assert "Not compared: " in (tmp_path / "report.html").read_text()
    client.command(f"ALTER TABLE {database}.kc DELETE WHERE id = 1 SETTINGS mutations_sync = 2")
    done = inside("repair", unread, config, "--apply", "--json")
    [repaired, failed] = json.loads(done.stdout)["streams"]
    assert (done.returncode, repaired["repaired"] > 0, "error" in failed) == (1, True, True)
    assert inside("verify", config).returncode == 0
    done = inside("verify", unread, config, "--continuous", "--rounds", "1", "--load", "100%", "--json")
    [equal, failed] = json.loads(done.stdout)["streams"]
    assert (done.returncode, equal["table"], equal["differences"]) == (1, f"{database}.kc", 0)
    assert (equal["stream"], "error" in failed) == (load(config).stream_name, True)
    report = tmp_path / "never.html"
    assert inside("verify", unread, "--html", str(report)).returncode == 1
    assert not report.exists(), "an empty report says nothing"


@pytest.mark.parametrize("lost", ["ch_sink_pending", "ch_sink_ledger"])
def test_the_table_that_does_not_exist_is_the_one_that_is_named(
    config: Path, client: Client, database: str, lost: str
) -> None:
    client.command(f"DROP TABLE {database}.{lost} SYNC")
    done = inside("explain", config, '{"id": 1, "k": 1}')
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: the sink's own table {database}.{lost} does not exist",
        "next: Create it with `ch_sink init CONFIG --apply`.",
    ]
