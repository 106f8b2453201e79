"""``init``, ``check`` and ``status`` against a local Kafka and the embedded ClickHouse."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ch_sink.cli import main
from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]

STREAM = "mariadb-json_schema-kc"
NULLS = "allow_nullable_key = 1"
RESYNC = (ROOT / "docs" / "resync.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def topic(kafka: LocalKafka) -> str:
    """A topic with the recorded key changes of MariaDB."""
    name = fresh_topic("kc")
    kafka.create_topic(name, 3)
    produce(kafka, topics(STREAM)[topic_of(STREAM, "kc")], name)
    return name


@pytest.fixture
def config(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, database: str, topic: str
) -> Callable[..., str]:
    def config(**more: str) -> str:
        lines = {
            "kafka": f"{{topic: {more.pop('topic', topic)}, bootstrap.servers: '{kafka.bootstrap}'}}",
            "clickhouse": f"{{url: '{more.pop('url', clickhouse.url)}', database: {database}, table: kc}}",
            **more,
        }
        path = tmp_path / "kc.yaml"
        path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
        return str(path)

    return config


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code
    return code if isinstance(code, int) else 0


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {f["title"]: f for f in json.loads(capsys.readouterr().out)["findings"] if f["level"] != "ok"}


def drop_all(client: Client, database: str) -> None:
    for row in client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'"):
        client.command(f"DROP TABLE {database}.{row['name']}")


@pytest.fixture(autouse=True)
def _emptied(client: Client, database: str):
    yield
    drop_all(client, database)


def table_types(client: Client, database: str, table: str = "kc") -> dict[str, str]:
    found = client.rows(
        "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String} ORDER BY position",
        {"d": database, "t": table},
    )
    return {str(row["name"]): str(row["type"]) for row in found}


def test_init_prints_by_default_and_makes_nothing(config, client, database, capsys):
    assert leave("init", config()) == 0
    shown = capsys.readouterr().out
    assert f"CREATE TABLE IF NOT EXISTS `{database}`.`kc`" in shown
    assert client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'") == []


def test_init_apply_makes_table_view_and_the_sink_s_own_tables(config, client, database):
    assert leave("init", config(), "--apply") == 0
    assert table_types(client, database) == {
        "id": "Int64",
        "k": "Int32",
        "v": "Nullable(String)",
        "amt": "Nullable(Decimal(20, 4))",
        "_version": "UInt128",
        "_is_deleted": "UInt8",
    }
    assert list(table_types(client, database, "kc_current")) == ["id", "k", "v", "amt"]
    for name in ("ledger", "dead_letters", "handover", "pending", "columns"):
        assert table_types(client, database, f"ch_sink_{name}")
    assert leave("init", config(), "--apply") == 0


def test_what_init_prints_is_what_apply_does(config, client, database, capsys):
    assert leave("init", config(engine="collapsing")) == 0
    for statement in capsys.readouterr().out.split(";\n"):
        if statement.strip():
            client.command("\n".join(line for line in statement.splitlines() if not line.startswith("--")))
    by_hand = table_types(client, database)
    drop_all(client, database)
    assert leave("init", config(engine="collapsing"), "--apply") == 0
    assert table_types(client, database) == by_hand


def test_init_brings_an_existing_table_up_to_the_source(config, client, database, capsys):
    client.command(
        f"CREATE TABLE {database}.kc (id Int64, k Int32, ver UInt64, gone UInt8) "
        "ENGINE = ReplacingMergeTree(ver, gone) ORDER BY (id, k)"
    )
    assert leave("init", config(), "--apply") == 0
    types = table_types(client, database)
    assert (types["v"], types["amt"]) == ("Nullable(String)", "Nullable(Decimal(20, 4))")
    capsys.readouterr()
    assert leave("init", config()) == 0
    assert "ALTER TABLE" not in capsys.readouterr().out


def test_init_with_a_row_policy(config, client, database):
    assert leave("init", config(), "--apply", "--set", "init.row_policy_roles=[analyst]") == 0
    found = client.rows("SELECT select_filter FROM system.row_policies WHERE database = {d:String}", {"d": database})
    assert len(found) == 1
    assert "_is_deleted = 0" in found[0]["select_filter"].replace("`", "")
    client.command(f"DROP ROW POLICY `ch_sink_kc` ON {database}.kc")


def test_check_is_content_after_init(config, capsys):
    path = config()
    assert leave("check", path, "--json") == 1
    assert "table" in findings(capsys)
    assert leave("init", path, "--apply") == 0
    capsys.readouterr()
    assert leave("check", path, "--json") == 0
    assert findings(capsys) == {}


def test_a_key_column_of_a_table_cannot_be_renamed(config, client, database, capsys):
    assert leave("init", config(), "--apply") == 0
    before = table_types(client, database)
    for command in ("init", "resync", "verify"):
        capsys.readouterr()
        assert leave(command, config(columns="{rename: {k: kk}}"), *(["--apply"] if command != "verify" else [])) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "`.`kc` lacks the key column kk" in said, command
        assert "Name a new table in clickhouse.table" in said, command
    assert table_types(client, database) == before


def test_check_tells_what_to_change(config, client, database, capsys):
    client.command(
        f"CREATE TABLE {database}.kc (id Int64, k Int32, v String, amt Nullable(Decimal(20, 4)), ver UInt64) "
        "ENGINE = ReplacingMergeTree(ver) ORDER BY id"
    )
    assert leave("check", config(), "--json") == 1
    found = findings(capsys)
    assert "lacks the key column k" in found["sorting key"]["detail"]
    assert found["deletes"]["level"] == "fail"
    assert found["ledger"]["level"] == "fail"
    for statement in found["deletes"]["remedy"].split(";\n"):
        client.command(statement.rstrip(";"))


@pytest.mark.long
def test_rows_that_another_sink_has_left_are_named(config, client, database, capsys):
    assert leave("init", config(), "--apply") == 0
    client.command(f"INSERT INTO {database}.kc (id, k, _version) VALUES (1, 1, 77)")
    capsys.readouterr()
    assert leave("check", config(), "--json") == 0
    assert "versions up to 77" in capsys.readouterr().out
    drop_all(client, database)
    own = "_peerdb_is_deleted UInt8, _peerdb_version UInt64"
    columns = f"id Int64, k Int32, v String, amt Nullable(Decimal(20, 4)), {own}"
    client.command(
        f"CREATE TABLE {database}.kc ({columns}) ENGINE = ReplacingMergeTree(_peerdb_version) ORDER BY (id, k)"
    )
    client.command(f"INSERT INTO {database}.kc (id, k, _peerdb_version) VALUES (1, 1, {(1 << 64) - 1})")
    assert leave("init", config()) == 0
    warned = capsys.readouterr().err
    assert "_peerdb_is_deleted marks deleted rows" in warned
    assert "EXCHANGE TABLES" in warned
    assert "PeerDB or ClickPipes produced them, and a UInt64 has no room above them" in warned


@pytest.mark.parametrize("command", ["init", "run"])
def test_a_topic_that_does_not_exist(config, command, capsys):
    arguments = ("--once",) if command == "run" else ()
    if command == "run":  # without a table it stops before it looks for the topic
        assert leave("init", config(), "--apply") == 0
    assert leave(command, config(topic="no.such.topic"), *arguments) == 1
    shown = capsys.readouterr().err
    assert "topic no.such.topic does not exist" in shown
    assert "next: " in shown


def test_a_table_that_does_not_exist(config, capsys):
    assert leave("run", config(), "--once") == 1
    shown = capsys.readouterr().err
    assert "kc does not exist" in shown
    assert "ch_sink init" in shown


def test_status_before_init_and_before_the_first_batch(config, capsys):
    assert leave("status", config()) == 1
    assert "ch_sink init" in capsys.readouterr().err
    assert leave("init", config(), "--apply") == 0
    capsys.readouterr()
    assert leave("status", config(), "--json") == 0
    [seen] = json.loads(capsys.readouterr().out)["streams"]
    assert (seen["lag"], seen["state"], seen["error"]) == (39, "idle", None)
    assert [p["next_offset"] for p in seen["partitions"]] == [None, None, None]


def test_status_goes_on_without_the_broker(config, impatient, capsys):
    assert leave("init", config(), "--apply") == 0
    capsys.readouterr()
    path = config()
    assert leave("status", path, "--json", "--set", "kafka.bootstrap.servers=127.0.0.1:1") == 0
    shown = capsys.readouterr()
    assert [s["lag"] for s in json.loads(shown.out)["streams"]] == [None]
    assert "the lag is unknown" in shown.err


def test_a_stream_is_named_after_the_file(config, topic, capsys):
    assert leave("init", config(), "--apply") == 0
    for name in (topic, "kc"):
        capsys.readouterr()
        assert leave("status", config(), name) == 0
        assert "3 partitions, lag 39 offsets" in capsys.readouterr().out
    assert leave("status", config(), "nothing") == 2
    assert "no stream is named nothing" in capsys.readouterr().err
    assert leave("status", "nothing") == 2
    assert "nothing is not a file" in capsys.readouterr().err
    assert leave("status", "nothing.yaml") == 2
    assert "nothing.yaml" in capsys.readouterr().err


def test_an_empty_topic_gives_no_table(config, kafka, capsys):
    empty = fresh_topic("empty")
    kafka.create_topic(empty, 1)
    assert leave("init", config(topic=empty)) == 1
    assert "holds no record" in capsys.readouterr().err


@pytest.mark.long
def test_an_empty_topic_of_the_table_that_the_page_makes_by_hand(config, kafka, client, database, capsys):
    empty = fresh_topic("empty")
    kafka.create_topic(empty, 1)
    path = config(topic=empty)
    [ddl] = re.findall(r"```sql\n(CREATE TABLE .*?);\n```", RESYNC, re.DOTALL)
    client.command(ddl.replace("shop.orders", f"{database}.kc"))
    assert leave("init", path, "--apply") == 0
    assert "its key is taken to be id. Run init again" in capsys.readouterr().err
    made = {str(row["name"]) for row in client.rows(f"SHOW TABLES FROM {database}")}
    assert made > {"kc", "kc_current", "ch_sink_ledger"}
    [table] = client.rows(f"SELECT engine_full FROM system.tables WHERE database = '{database}' AND name = 'kc'")
    assert "non_replicated_deduplication_window" in str(table["engine_full"])
    assert leave("run", path, "--once") == 0
    assert leave("status", path) == 0


@pytest.mark.long
def test_a_history_made_by_hand_gets_its_views_once_the_topic_shows_its_key(config, kafka, client, database, capsys):
    late = fresh_topic("late")
    kafka.create_topic(late, 3)
    path = config(topic=late)
    columns = "id Int64, k Int32, v Nullable(String), amt Nullable(Decimal(20, 4))"
    client.command(f"CREATE TABLE {database}.kc ({columns}) ENGINE = MergeTree ORDER BY (v, id) SETTINGS {NULLS}")
    assert leave("init", path, "--apply") == 0
    assert "nor is its key, so the views that show rows by it are left out" in capsys.readouterr().err
    produce(kafka, topics(STREAM)[topic_of(STREAM, "kc")], late)
    assert leave("run", path, "--once") == 0
    assert leave("init", path, "--apply") == 0
    [shown] = client.rows(f"SELECT count() AS rows, uniqExact(id, k) AS keys FROM {database}.kc_current")
    assert shown["rows"] == shown["keys"] != 0


def test_a_wrong_password(config, tmp_path, capsys):
    with EmbeddedClickHouse(tmp_path / "locked", user="sink", password="right") as locked:
        path = config(url=locked.url)
        wrong = ("--set", "clickhouse.username=sink", "--set", "clickhouse.password=hunter2-wrong")
        for command in (("init", path, "--apply"), ("status", path), ("run", path, "--once")):
            assert leave(*command, *wrong) == 1
            shown = capsys.readouterr().err
            assert "password" in shown.lower()
            assert "hunter2" not in shown
            assert "Traceback" not in shown
        assert (
            leave("init", path, "--apply", "--set", "clickhouse.username=sink", "--set", "clickhouse.password=right")
            == 0
        )


@pytest.mark.long
def test_init_says_what_it_changed(config, client, database, capsys):
    assert leave("init", config(), "--apply") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "unchanged  database " + database in lines
    assert {"created    table kc", "created    view kc_current", "created    table ch_sink_ledger"} <= set(lines)
    assert leave("init", config(), "--apply", "--set", "init.row_policy_roles=[analyst]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "created    row policy ch_sink_kc" in lines
    assert leave("init", config(), "--apply", "--set", "init.row_policy_roles=[analyst]") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"unchanged"}
    assert {"unchanged  table kc", "unchanged  view kc_current", "unchanged  row policy ch_sink_kc"} <= set(lines)
    client.command(f"DROP ROW POLICY `ch_sink_kc` ON {database}.kc")
    client.command(f"ALTER TABLE {database}.kc DROP COLUMN amt")
    assert leave("init", config(), "--apply") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"changed    alter kc", "unchanged  view kc_current", "unchanged  table ch_sink_ledger"} <= set(lines)
    client.command(f"ALTER TABLE {database}.kc ADD COLUMN extra Nullable(Int64)")
    leave("check", config())
    assert "kc_current` no longer fits the table: it lacks column extra" in capsys.readouterr().out
    client.command(f"CREATE OR REPLACE VIEW {database}.kc_current AS SELECT id FROM {database}.kc")
    assert leave("init", config(), "--apply") == 0
    assert "view kc_current is not one that ch_sink keeps and is left alone" in capsys.readouterr().err
    assert [r["name"] for r in client.rows(f"DESCRIBE TABLE {database}.kc_current")] == ["id"]
    leave("check", config())
    assert "kc_current` is not one that ch_sink keeps" in capsys.readouterr().out
    client.command(f"DROP VIEW {database}.kc_current")
    client.command(f"CREATE TABLE {database}.kc_current (mine Int64) ENGINE = MergeTree ORDER BY mine")
    taken = "kc_current exists and has the engine MergeTree: the view of this name cannot be created"
    assert leave("init", config(), "--apply") == 1
    assert taken in capsys.readouterr().err
    assert leave("check", config()) == 1
    said = capsys.readouterr().out
    assert taken in said
    assert "CREATE OR REPLACE VIEW" not in said


@pytest.mark.long
def test_init_and_check_take_several_files(config, client, database, tmp_path, capsys):
    first = Path(config())
    second = tmp_path / "second.yaml"
    text = first.read_text()
    second.write_text(text.replace("table: kc", "table: kc2"))
    assert leave("init", str(first), str(second)) == 0
    shown = capsys.readouterr().out
    assert [shown.count(f"EXISTS `{database}`.`{name}`\n") for name in ("kc", "kc2", "ch_sink_ledger")] == [1, 1, 1]
    third = tmp_path / "third.yaml"
    third.write_text(second.read_text().replace("topic: ", "topic: no.").replace("kc2", "kc3").replace("t2", "t3"))
    assert leave("init", str(first), str(third), "--apply") == 1
    assert not client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'")
    assert leave("init", str(first), str(second), "--apply") == 0
    capsys.readouterr()
    assert leave("check", str(first), str(second), "--json") == 0
    streams = json.loads(capsys.readouterr().out)["streams"]
    assert [(s["ok"], s["stream"].rpartition(".")[2]) for s in streams] == [(True, "kc"), (True, "kc2")]
