"""Older engines beside the environment's own: the one that was asked for answers, and one that is missing is named."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse.launch import ENGINE, EmbeddedClickHouse
from tests.support.endpoint import on_engines, skip_unless_installed

SCRIPT = Path(__file__).parents[2] / "compose" / "engine.sh"


@pytest.mark.long
@pytest.mark.integration
@on_engines("25.8", "26.3")
def test_the_engine_that_was_asked_for_answers_and_counts_what_it_took(
    request: pytest.FixtureRequest, client: Client, database: str
) -> None:
    assert client.server_version.startswith(f"{request.node.callspec.params['clickhouse']}.")
    client.command(f"CREATE TABLE {database}.t (a Int64) ENGINE = MergeTree ORDER BY a")
    assert client.insert(f"{database}.t", pa.table({"a": [1, 2, 3]}), settings={}) == 3


def test_an_engine_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENGINE, "23.8")
    with pytest.raises(ConfigError, match=r"engine 23\.8 is not installed") as refused:
        EmbeddedClickHouse()
    assert refused.value.hint == f"compose/engine.sh {sys.prefix} 23.8"


def test_what_pip_says_of_an_engine_that_it_cannot_install_is_the_reason_of_the_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "bin" / "python"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\necho 'ERROR: the index does not answer' >&2\nexit 1\n")
    pip.chmod(0o755)
    run = subprocess.run([SCRIPT, tmp_path, "25.8"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert os.listdir(tmp_path / "engines") == ["25.8.error"]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (mark,) = skip_unless_installed("25.8")
    assert mark.kwargs["reason"] == "the engine 25.8 is not installed: ERROR: the index does not answer"


def test_the_script_names_the_engines_that_there_are(tmp_path: Path) -> None:
    run = subprocess.run([SCRIPT, tmp_path, "23.8"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert (
        run.stderr.split() == "There is no engine 23.8; those that can be installed: 25.8 26.1 26.3 26.5 26.7".split()
    )
