"""What is wrong with a file of many topics is said before anything runs: what is at fault, and the next step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ch_sink.config import load_job
from ch_sink.discovery import job_topics
from ch_sink.discovery.init_plan import create_tables
from ch_sink.discovery.job_topics import TablesOfTopics, streams_of
from ch_sink.errors import ClickHouseError, ConfigError
from tests.support.event import event, row
from tests.support.fixtures import Recorded
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import Place, inside, run_stream

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

COMMANDS = (("check",), ("init",), ("init", "--apply"), ("status",), ("run", "--once"))
SHORT = (("check",), ("init", "--apply"), ("run", "--once"))
"""Those that `make test` tries."""


def some_of(*commands: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(words, id=" ".join(words), marks=() if words in SHORT else pytest.mark.long) for words in commands
    ]


@pytest.fixture
def prefix(place: Place) -> str:
    """Of two topics, ``orders`` and ``users``, of one row each."""
    prefix = fresh_topic("bad")
    for table in ("orders", "users"):
        one_row(place, f"{prefix}.public.{table}", b'{"id": 1}')
    return prefix


def one_row(place: Place, topic: str, key: bytes | None) -> None:
    place.kafka.create_topic(topic, 1)
    produce(place.kafka, [Recorded(topic, 0, 0, 1_700_000_000_000, key, event("c", row(1)), ())], topic)


Write = Callable[..., Path]


@pytest.fixture
def write(place: Place, prefix: str) -> Write:
    def write(table: str = "{table}", topics: str = r"\.public\..*", **more: Any) -> Path:
        settings = {
            "kafka": {"topics": prefix + topics, "bootstrap.servers": place.kafka.bootstrap},
            "clickhouse": {"url": place.clickhouse.url, "database": place.database, "table": table},
            "create_tables": True,
            **more,
        }
        path = place.folder / "shop.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path

    return write


def exception(prefix: str, table: str, **keys: Any) -> list[dict[str, Any]]:
    """An exception for one table."""
    return [{"match": rf"{prefix}\.public\.{table}", **keys}]


@pytest.mark.long
@pytest.mark.parametrize("words", some_of(*COMMANDS, ("pause",), ("resume",)))
def test_a_pattern_that_matches_nothing_waits_and_says_so(write: Write, prefix: str, words: tuple[str, ...]) -> None:
    path = write(topics=r"\.privat\..*")
    done = inside(words[0], path, *words[1:])
    assert done.returncode == 0, done.stderr
    said = f"{path}: no topic matches {prefix}\\.privat\\..* yet; new topics are looked for while a job runs"
    assert said in done.stderr


@pytest.mark.parametrize("words", some_of(*COMMANDS))
def test_a_template_with_an_unknown_field_names_its_key_and_line(write: Write, words: tuple[str, ...]) -> None:
    path = write("{tabel}")
    done = inside(words[0], path, *words[1:])
    assert done.returncode == 2
    assert f"{path} line 3: clickhouse.table: {{tabel}} has the unknown field {{tabel}}" in done.stderr
    assert "next: The fields are {database}, {schema}, {table}" in done.stderr


def test_an_unknown_field_of_an_exception_names_the_exception(write: Write, prefix: str) -> None:
    path = write(tables=exception(prefix, "users", clickhouse={"table": "{x}"}))
    with pytest.raises(ConfigError, match=r"line 10: clickhouse.table: \{x\} has the unknown field \{x\}"):
        load_job(path)


@pytest.mark.parametrize("words", some_of(*(c for c in COMMANDS if c != ("status",))))
def test_two_topics_of_one_table_are_refused(write: Write, place: Place, prefix: str, words: tuple[str, ...]) -> None:
    done = inside(words[0], write("all"), *words[1:])
    assert done.returncode == 2
    assert f"topics {prefix}.public.orders and {prefix}.public.users would both be written to" in done.stderr
    assert "or set merge: true, and a column distinguishes their rows" in done.stderr
    assert place.rows("SHOW TABLES FROM {db}") == []


def test_two_topics_of_one_table_share_it_where_the_file_says_so(write: Write, place: Place, prefix: str) -> None:
    """The second topic is planned once the table is there: the view names its column, and the first one's."""
    renamed = exception(prefix, "users", columns={"rename": {"v": "w"}})
    done = inside("init", write("all", merge=True, tables=renamed), "--apply")
    assert done.returncode == 0, done.stderr
    shown = {row["name"] for row in place.rows("DESCRIBE TABLE {db}.all_current")}
    assert shown >= {"v", "w"}
    [found] = place.rows("SELECT sorting_key FROM system.tables WHERE database = '{db}' AND name = 'all'")
    assert "_source" in found["sorting_key"]


def test_a_mask_on_a_column_of_the_topic_s_key_is_refused_for_that_topic(
    write: Write, place: Place, prefix: str
) -> None:
    path = write(tables=exception(prefix, "users", columns={"mask": {"id": "sha256"}}))
    stream = f"{prefix}.public.users:{place.database}.users"
    checked = inside("check", path, "--json")
    assert checked.returncode == 1
    found = {s["stream"]: s for s in json.loads(checked.stdout)["streams"]}
    assert [f["remedy"] for f in found[stream]["findings"] if f["level"] == "fail"] == ["Remove 'id' from columns."]
    assert [s["ok"] for name, s in found.items() if name != stream] == [True]
    made = inside("init", path, "--apply")
    assert made.returncode == 1
    assert f"{stream}: columns masks 'id', which is a column of the topic's key" in made.stderr
    assert {r["name"] for r in place.rows("SHOW TABLES FROM {db}")} >= {"orders", "orders_current"}


def test_a_table_that_cannot_be_made_holds_up_no_other(write: Write, place: Place, prefix: str) -> None:
    """``orders`` comes first, and its engine cannot be created as the file wants it."""
    path = write(tables=exception(prefix, "orders", init={"partition_by": "nothing(of_this)"}))
    made = inside("init", path, "--apply")
    assert made.returncode == 1
    assert f"{prefix}.public.orders:{place.database}.orders: could not run" in made.stderr
    assert {r["name"] for r in place.rows("SHOW TABLES FROM {db}")} >= {"users", "users_current", "ch_sink_ledger"}
    orders = next(c for c in streams_of([load_job(path)]).streams if c.clickhouse.table == "orders")
    with pytest.raises(ClickHouseError) as caught:
        create_tables(orders)
    assert f"no table can be created for topic {prefix}.public.orders: could not run" in str(caught.value)
    assert "under `init`" in (caught.value.hint or "")
    assert "ch_sink init CONFIG --only" in (caught.value.hint or "")


def test_check_is_content_with_a_table_that_the_job_creates(write: Write, place: Place, prefix: str) -> None:
    place.kafka.create_topic(f"{prefix}.public.empty", 1)
    checked = inside("check", write(), "--verbose")
    assert checked.returncode == 0, checked.stdout
    assert f"ok   table: {place.database}.users does not exist yet: the job creates it" in checked.stdout
    assert "empty does not exist yet: the job creates it from the topic's first events" in checked.stdout
    assert inside("check", write(create_tables=False)).returncode == 1


def test_the_sink_s_own_tables_are_made_and_told_once(write: Write) -> None:
    done = inside("init", write(), "--apply")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("table ch_sink_ledger") == 1
    assert "unchanged  table" not in done.stdout


def test_notes_of_init_name_their_table(write: Write, place: Place, prefix: str) -> None:
    one_row(place, f"{prefix}.public.lines", None)
    done = inside("init", write())
    assert done.returncode == 0, done.stderr
    assert f"{place.database}.lines: the topic has no keys" in done.stderr


def test_an_exception_that_matches_nothing_is_a_warning_with_its_line(write: Write, prefix: str) -> None:
    path = write(tables=exception(prefix, "userz", skip=True))
    done = inside("check", path)
    assert done.returncode == 0
    assert f"warning: {path} line 10: the exception {prefix}\\.public\\.userz matches no topic" in done.stderr


def test_tables_of_one_topic_are_known_though_their_events_lie_amid_those_of_others(
    write: Write, place: Place, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``init`` reads the topic whole, as the job does; the other commands know what a stream has read."""
    monkeypatch.setattr(job_topics, "_SEEN", 2)
    topic = f"{prefix}.all"
    place.kafka.create_topic(topic, 1)
    tables = ["orders"] * 3 + ["countries"] + ["orders"] * 3
    records = [
        Recorded(topic, 0, n, 0, b'{"id": %d}' % n, event("c", row(n), db="shop", schema="", table=table), ())
        for n, table in enumerate(tables)
    ]
    produce(place.kafka, records, topic)
    path = write(topics=r"\.all", split=True)
    assert [c.source_table for c in streams_of([load_job(path)]).streams] == ["shop.orders"]
    made = inside("init", path, "--apply")
    assert made.returncode == 0, made.stderr
    assert {r["name"] for r in place.rows("SHOW TABLES FROM {db}")} >= {"orders", "countries"}
    [countries] = [
        c for c in streams_of([load_job(path)], look=TablesOfTopics()).streams if "countries" in c.stream_name
    ]
    run_stream(countries)
    assert {c.source_table for c in streams_of([load_job(path)]).streams} == {"shop.orders", "shop.countries"}
    compared = inside("verify", path, "--only", ".*countries")
    assert compared.returncode == 0, compared.stderr
    assert "1 row compared" in compared.stdout
