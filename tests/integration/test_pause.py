"""``ch_sink pause`` and ``ch_sink resume`` on a ledger, without a job and without Kafka."""

import json
from pathlib import Path

import pytest

from ch_sink.cli import main
from ch_sink.clickhouse import ClickHouseStreamStates, Client, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.ports import Condition
from ch_sink.stream.standing import seen_from_outside
from tests.support.state_tables import create_statement

pytestmark = [pytest.mark.integration]

LEDGER = "ch_sink_ledger"


def leave(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return caught.value.code if isinstance(caught.value.code, int) else 0


@pytest.fixture
def files(tmp_path: Path, clickhouse: EmbeddedClickHouse, client: Client, database: str) -> list[Path]:
    """Two streams with a ledger."""
    execute(client, [create_statement("ledger", database, LEDGER)])
    made = []
    for table in ("orders", "users"):
        path = tmp_path / f"{table}.yaml"
        path.write_text(
            f"kafka: {{topic: shop.public.{table}, bootstrap.servers: '127.0.0.1:1'}}\n"
            f"clickhouse: {{url: '{clickhouse.url}', database: {database}, table: {table}}}\n"
            f"stream: {table}\n"
        )
        made.append(path)
    return made


@pytest.fixture
def states(client: Client, database: str) -> ClickHouseStreamStates:
    return ClickHouseStreamStates(client.settings, database, LEDGER)


def seen(states: ClickHouseStreamStates) -> dict[str, str]:
    return {name: seen_from_outside(found).state for name, found in states.read(["orders", "users"]).items()}


def test_all_streams_of_the_files_are_paused_and_resumed(files, states, capsys):
    assert leave("pause", *files) == 0
    assert seen(states) == {"orders": "paused", "users": "paused"}
    assert capsys.readouterr().out == "orders: pause requested, was idle\nusers: pause requested, was idle\n"
    assert leave("resume", *files, "--json") == 0
    assert seen(states) == {"orders": "idle", "users": "idle"}
    assert [s["before"] for s in json.loads(capsys.readouterr().out)["streams"]] == ["paused", "paused"]


@pytest.mark.parametrize("pattern", ["shop.public.users", r".*\.users", "users"])
def test_only_those_that_the_pattern_matches_as_a_whole(files, states, pattern):
    assert leave("pause", *files, "--only", pattern) == 0
    assert seen(states) == {"orders": "idle", "users": "paused"}


def test_a_stopped_stream_is_resumed(files, states):
    states.note({"orders": Condition("stopped", 1.0, "unknown column", "add it", "host", "c1")})
    assert seen(states)["orders"] == "stopped"
    assert leave("resume", *files) == 0
    assert seen(states)["orders"] == "idle"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "--only nothing matches none of 2 streams"),
        (["--only", "shop"], "--only shop matches none of 2 streams"),
        (["--only", "("], "--only '(' is not a pattern"),
    ],
)
def test_a_pattern_that_selects_nothing_is_refused(files, capsys, arguments, said):
    assert leave("pause", *files, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [("pause",), ("resume",), ("status",), ("dead-letters", "list"), ("dead-letters", "drop")]
)
def test_without_a_ledger_or_letters_the_next_step_is_init(files, client, database, capsys, command):
    client.command(f"DROP TABLE {database}.{LEDGER} SYNC")
    assert leave(*command, files[0]) == 1
    shown = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    table = "ch_sink_dead_letters" if command[0] == "dead-letters" else LEDGER
    assert shown == [
        f"error: the sink's own table {database}.{table} does not exist",
        "next: Create it with `ch_sink init CONFIG --apply`.",
    ]


def test_without_the_database_the_next_step_is_init(files, capsys):
    assert leave("pause", files[0], "--set", "clickhouse.database=nowhere") == 1
    assert "error: the sink's own table nowhere.ch_sink_ledger does not exist" in capsys.readouterr().err


def test_no_stream_is_paused_if_the_ledger_of_another_is_missing(files, states, tmp_path, capsys):
    other = tmp_path / "other.yaml"
    other.write_text(files[1].read_text().replace("database: ", "database: nowhere_"))
    assert leave("pause", files[0], other) == 1
    assert seen(states)["orders"] == "idle"
