"""A whole database by one file, as users run it: tables made on first sight, exceptions, topics that come and go."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from tests.support.fixtures import read_truth, topic_of, topics
from tests.support.kafka import produce, values
from tests.support.recorded import tables
from tests.support.sink import ROOT, Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

STREAMS = {
    table: stream
    for stream in ("postgres-json_schema", "postgres-json_schema-kc", "postgres-json_schema-wide")
    for table in tables(stream)
}
"""Each recorded table, and the stream that has it."""


def filled(place: Place, table: str, name: str | None = None) -> str:
    """A topic of this database's schema with the recorded changes of a table."""
    topic = f"{place.database}.public.{name or table}"
    records = topics(STREAMS[table])[topic_of(STREAMS[table], table)]
    place.kafka.create_topic(topic, 3 if any(record.key is not None for record in records) else 1)
    produce(place.kafka, records, topic)
    return topic


def job_file(place: Place, exceptions: list[dict[str, object]], **more: object) -> Path:
    path = place.folder / "shop.yaml"
    settings = {
        "kafka": {"topics": rf"{place.database}\.public\..*", "bootstrap.servers": place.kafka.bootstrap},
        "clickhouse": {"url": place.clickhouse.url, "database": place.database, "table": "{table}"},
        "create_tables": True,
        "truncate": "apply",
        "discovery_interval": "1s",
        "tables": exceptions,
        **more,
    }
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.long
def test_one_file_makes_and_fills_the_tables_of_a_dozen_topics(place: Place) -> None:
    """Without `init`: every table equals its source; one is skipped, one appended to, one has chosen columns."""
    for table in STREAMS:
        filled(place, table)
    filled(place, "ac", "tmp_ac")
    path = job_file(
        place,
        [
            {"match": r".*\.tmp_.*", "skip": True},
            {"match": r".*\.strkey", "engine": "append"},
            {
                "match": r".*\.nn",
                "columns": {
                    "exclude": ["u"],
                    "rename": {"i": "number"},
                    "mask": {"t": "sha256"},
                    "add": {"origin": "'{topic[1]}'"},
                },
            },
        ],
    )
    checked = inside("check", path, "--only", "strkey")
    assert checked.returncode == 0, checked.stdout
    assert "strkey does not exist yet: the job creates it" in checked.stdout
    done = inside("run", path, "--once")
    assert done.returncode == 0, done.stderr + done.stdout
    assert [d for t in STREAMS if t != "nn" for d in place.differences("postgres", STREAMS[t], t)] == []
    names = {r["name"] for r in place.rows("SELECT name FROM system.tables WHERE database = '{db}'")}
    assert "tmp_ac" not in names
    [engine] = place.rows("SELECT engine FROM system.tables WHERE database = '{db}' AND name = 'strkey'")
    assert engine["engine"] == "MergeTree"

    truth = read_truth("postgres")["nn"]
    kept = [c["name"] for c in truth.columns if c["name"] not in ("u", "t", "i")]
    assert kept
    columns = {
        r["name"]: r["type"]
        for r in place.rows("SELECT name, type FROM system.columns WHERE database = '{db}' AND table = 'nn'")
    }
    assert not {"u", "i"} & columns.keys()
    assert columns["t"] in ("String", "Nullable(String)")
    [row] = place.rows("SELECT number, t, lower(hex(SHA256('dflt'))) AS hashed, origin FROM {db}.nn_current")
    assert (row["number"], row["t"], row["origin"]) == (43, row["hashed"], "public")

    # Nothing is read twice when topics move to files of their own, and `check` is content with what was made.
    again = inside("run", path, "--once", "--json")
    assert again.returncode == 0, again.stderr
    assert '"records": 0' in again.stdout or again.stdout in ("", "[]\n")
    own = place.config(f"{place.database}.public.kc", "kc", truncate="apply")
    moved = inside("run", own, "--once", "--json")
    assert '"records": 0' in moved.stdout or moved.stdout == ""
    assert place.differences("postgres", STREAMS["kc"], "kc") == []
    checked = inside("check", path, "--only", "nn|kc|ac")
    assert checked.returncode == 0, checked.stdout


def test_a_topic_that_is_no_change_stream_stops_alone(place: Place) -> None:
    filled(place, "kc")
    topic = f"{place.database}.public.transaction"
    place.kafka.create_topic(topic, 1)
    produce(place.kafka, values(topic, 0, ['{"status": "BEGIN", "id": "1", "event_count": null}']), topic)
    path = job_file(place, [{"match": "nothing", "engine": "append"}])
    done = inside("run", path, "--once")
    assert done.returncode == 1
    assert f"no table can be created for topic {topic}" in done.stderr
    assert "skip: true" in done.stderr
    assert "the exception nothing matches no topic" in done.stderr + done.stdout
    assert place.differences("postgres", STREAMS["kc"], "kc") == []


@pytest.mark.long
@pytest.mark.usefixtures("broker")
def test_topics_join_and_leave_a_running_job(place: Place) -> None:
    """The job begins without any topic. One that comes has no place of its own, until the file gives it one."""
    path = job_file(place, [{"match": r".*\.twin", "clickhouse": {"table": "kc"}}])
    log = place.folder / "log"
    with log.open("w") as file:
        job = subprocess.Popen(
            [sys.executable, "-m", "ch_sink", "run", str(path)],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _until(lambda: "no topic matches" in log.read_text(), job, log)
        topic = filled(place, "kc")
        _until(lambda: _equal(place, "kc"), job, log)
        place.kafka.create_topic(f"{place.database}.public.ac", 3)
        _until(lambda: "public.ac has no event yet" in log.read_text(), job, log)
        produce(place.kafka, topics(STREAMS["ac"])[topic_of(STREAMS["ac"], "ac")], f"{place.database}.public.ac")
        _until(lambda: _equal(place, "ac"), job, log)

        twin = filled(place, "kc", "twin")
        _until(lambda: f"topic {twin} is refused" in log.read_text(), job, log)
        # `run` shows it, and so does `status`; nothing else fails because of it.
        _until(lambda: "1 stopped" in inside("status", path).stdout, job, log)
        [refused] = [s for s in json.loads(inside("status", path, "--json").stdout)["streams"] if s["topic"] == twin]
        assert (refused["state"], refused["stream"]) == ("stopped", twin)
        assert f"{topic} and {twin} would both be written to {place.database}.kc" in refused["error"]
        assert "merge: true" in refused["next"]
        assert inside("pause", path, "--only", "ac").returncode == 0
        assert inside("resume", path, "--only", "ac").returncode == 0
        job_file(place, [{"match": r".*\.twin", "clickhouse": {"table": "twin"}}])
        _until(lambda: f"topic {twin} is accepted again" in log.read_text(), job, log)
        _until(lambda: _same_rows(place, "twin", "kc"), job, log)
        shown = json.loads(inside("status", path, "--json").stdout)["streams"]
        assert [s["table"] for s in shown if s["topic"] == twin] == [f"{place.database}.twin"]
        assert {s["state"] for s in shown} == {"running"}

        admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
        admin.delete_topics([topic])[topic].result(30)
        _until(lambda: f"leaves the job: topic {topic} was deleted" in log.read_text(), job, log)
        assert job.poll() is None
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(60) == 143, log.read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)


def _equal(place: Place, table: str) -> bool:
    names = {r["name"] for r in place.rows("SELECT name FROM system.tables WHERE database = '{db}'")}
    return f"{table}_current" in names and place.differences("postgres", STREAMS[table], table) == []


def _same_rows(place: Place, one: str, other: str) -> bool:
    """Whether two tables exist and show as many rows."""
    names = {r["name"] for r in place.rows("SELECT name FROM system.tables WHERE database = '{db}'")}
    if not {f"{one}_current", f"{other}_current"} <= names:
        return False
    return place.count(f"{one}_current") == place.count(f"{other}_current") > 0


def _until(done: Callable[[], bool], job: "subprocess.Popen[bytes]", log: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.3)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_init_makes_the_tables_of_all_topics_but_one_that_is_no_change_stream(place: Place) -> None:
    """And `status` and `pause` know the streams while no broker answers."""
    for table in ("kc", "ac"):
        filled(place, table)
    topic = f"{place.database}.public.transaction"
    place.kafka.create_topic(topic, 1)
    produce(place.kafka, values(topic, 0, ['{"status": "BEGIN", "id": "1", "event_count": null}']), topic)
    path = job_file(place, [], create_tables=False)
    stopped = inside("run", path, "--once", "--only", "kc")
    assert stopped.returncode == 1
    assert "ch_sink init CONFIG --apply" in stopped.stderr
    made = inside("init", path, "--apply")
    assert made.returncode == 1
    assert "the columns of the table are unknown" in made.stderr
    names = {r["name"] for r in place.rows("SELECT name FROM system.tables WHERE database = '{db}'")}
    assert {"kc", "kc_current", "ac", "ac_current", "ch_sink_ledger"} <= names
    assert inside("run", path, "--once", "--only", "kc|ac").returncode == 0
    assert [d for t in ("kc", "ac") for d in place.differences("postgres", STREAMS[t], t)] == []

    away = ("--set", "kafka.bootstrap.servers=127.0.0.1:1")
    seen = inside("status", path, "--json", *away)
    assert seen.returncode == 0, seen.stderr
    shown = {s["table"].partition(".")[2]: s for s in json.loads(seen.stdout)["streams"]}
    assert set(shown) == {"kc", "ac"}
    assert shown["kc"]["rows"] > 0
    assert "no Kafka broker answers" in seen.stderr
    assert inside("pause", path, "--only", "kc", *away).returncode == 0
    assert {s["state"] for s in json.loads(inside("status", path, "--json", "--only", "kc").stdout)["streams"]} == {
        "paused"
    }


@pytest.mark.long
def test_a_topic_of_several_tables_is_split_into_streams(place: Place) -> None:
    """Rows of three tables in one topic, with the same keys; one of them appears later."""
    topic = f"{place.database}_routed"
    place.kafka.create_topic(topic, 3)
    path = job_file(place, [])
    settings = yaml.safe_load(path.read_text())
    settings["kafka"]["topics"] = topic
    path.write_text(yaml.safe_dump(settings))
    for chosen in (("ac", "kc_full"), ("nn",)):
        mixed = [r for table in chosen for r in topics(STREAMS[table])[topic_of(STREAMS[table], table)]]
        produce(place.kafka, sorted(mixed, key=lambda r: (r.partition, r.timestamp)), topic)
        done = inside("run", path, "--once")
        assert done.returncode == 0, done.stderr
    assert [d for t in ("ac", "kc_full", "nn") for d in place.differences("postgres", STREAMS[t], t)] == []
    shown = json.loads(inside("status", path, "--json").stdout)["streams"]
    assert {s["stream"] for s in shown} == {f"{topic}:{place.database}.{t}" for t in ("ac", "kc_full", "nn")}
    assert {s["lag"] for s in shown} == {0}
