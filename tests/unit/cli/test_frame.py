"""The frame around all commands: exit codes, errors in words, no traceback, no secret."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ch_sink.cli import main
from ch_sink.cli.app import app
from ch_sink.table.checks import Finding

CONFIG = """\
kafka:
  topic: no.such.topic
  bootstrap.servers: 127.0.0.1:1
clickhouse:
  url: http://127.0.0.1:1
  table: orders
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def leave(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code
    return code if isinstance(code, int) else 0


COMMANDS = "init check run pause resume status verify explain dead-letters repair resync purge demo server".split()


def test_help_names_every_command_with_a_whole_summary(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert leave("--help") == 0
    listed = capsys.readouterr().out.partition("Set up:")[2].partition("\n\n  Exit codes")[0]
    assert re.findall(r"^  ([a-z-]+) +[A-Z].*\.$", listed, re.MULTILINE) == COMMANDS
    assert len(COMMANDS) == len(app.registered_commands) + len(app.registered_groups)
    # No summary goes on in a second line.
    assert len([line for line in listed.splitlines() if line.startswith("  ")]) == len(COMMANDS)


def test_a_row_that_lives_is_removed_by_its_key_only(config, capsys):
    assert leave("purge", str(config), "--live") == 2
    assert "--live needs --key" in capsys.readouterr().err


def test_version(capsys):
    assert leave("--version") == 0
    assert capsys.readouterr().out.startswith("ch_sink ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("fly",),
        ("init",),
        ("run", "--nonsense"),
        ("status",),
        ("server", "--port", "many"),
        ("server", "--port", "-1"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    assert leave(*arguments) == 2
    shown = capsys.readouterr()
    assert "Usage:" in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("command", ["init", "check", "run", "status"])
def test_an_unknown_key_is_exit_code_2_with_the_nearest_name(command, config, capsys):
    config.write_text(config.read_text().replace("table:", "tabel:"))
    assert leave(command, str(config)) == 2
    shown = capsys.readouterr().err
    assert "did you mean clickhouse.table?" in shown
    assert "next: " in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("command", ["init", "check", "run", "status"])
def test_a_missing_file_is_exit_code_2(command, tmp_path, capsys):
    assert leave(command, str(tmp_path / "none.yaml")) == 2
    assert "none.yaml: no such file" in capsys.readouterr().err


def test_a_traceback_is_shown_only_with_debug(tmp_path, capsys):
    missing = str(tmp_path / "none.yaml")
    leave("check", missing, "--debug")
    assert "Traceback" in capsys.readouterr().err
    leave("--debug", "check", missing)
    assert "Traceback" in capsys.readouterr().err


def test_two_streams_must_not_share_a_name(config, tmp_path, capsys):
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text())
    assert leave("status", str(config), str(other)) == 2
    assert "same stream name" in capsys.readouterr().err


def test_status_without_a_server_is_exit_code_1_with_the_next_step(config, capsys):
    assert leave("status", str(config), "--set", "clickhouse.password=hunter2-secret") == 1
    shown = capsys.readouterr().err
    assert "error: ClickHouse at http://127.0.0.1:1 does not answer" in shown
    assert "next: " in shown
    assert "hunter2" not in shown


@pytest.mark.slow
def test_check_without_anything_running_lists_all_that_fails(config, impatient, capsys):
    assert leave("check", str(config), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    failed = {f["title"]: f for f in document["findings"] if f["level"] == "fail"}
    assert document["ok"] is False
    assert {"kafka", "clickhouse"} <= set(failed)
    assert "127.0.0.1:1" in failed["kafka"]["detail"]
    assert failed["kafka"]["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--verbose",)])
def test_check_of_several_streams_shows_what_is_not_well_and_a_summary(
    config, options, impatient, monkeypatch, tmp_path, capsys
):
    findings = {"one": ["ok", "ok"], "two": ["ok", "warn"], "three": ["fail", "ok"]}
    asked: list[None] = []
    monkeypatch.setattr("ch_sink.cli.init.java_finding", lambda: asked.append(None) or Finding("ok", "java", "17"))
    monkeypatch.setattr(
        "ch_sink.discovery.findings.findings",
        lambda stream: [Finding(level, f"{stream.stream_name} {level}", "") for level in findings[stream.stream_name]],
    )
    paths = []
    for name in findings:
        path = tmp_path / f"{name}.yaml"
        path.write_text(config.read_text() + f"\nstream: {name}\n")
        paths.append(str(path))
    assert leave("check", *paths, *options) == 1
    shown = capsys.readouterr().out
    assert "3 streams: 1 failed, 1 with warnings, 1 ok" in shown
    assert ("two warn" in shown, "three fail" in shown) == (True, True)
    assert ("one ok" in shown, "two ok" in shown) == (bool(options), bool(options))
    assert len(asked) == 1


def test_an_interrupt_ends_without_a_traceback(config, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ch_sink.cli.init.load_all", interrupted)
    assert leave("check", str(config)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_what_nobody_foresaw_is_told_in_one_sentence(config, monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("ch_sink.cli.init.load_all", broken)
    assert leave("check", str(config)) == 1
    shown = capsys.readouterr().err
    assert "error: unexpected RuntimeError: first line" in shown
    assert "second line" not in shown
    assert "--debug" in shown


def test_help_needs_neither_spark_nor_the_network():
    heavy = "[m for m in ('pyspark', 'chdb', 'confluent_kafka', 'pyarrow', 'pydantic') if m in sys.modules]"
    code = f"import sys\nfrom ch_sink.cli.app import app\nprint({heavy})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
