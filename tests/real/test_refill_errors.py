"""What is wrong with a source is said by `resync`, and the table stays as it was, as after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from tests.real.test_verify_source import ROWS, config, source
from tests.support.sink import ROOT, inside, statuses

__all__ = ["config", "source"]

pytestmark = pytest.mark.long


def test_a_failed_resync_changes_nothing_and_a_good_one_mends(
    config: Path, source: Any, client: Client, database: str
) -> None:
    def state() -> tuple[int, list[str]]:
        [rows] = client.rows(f"SELECT count() AS n FROM {database}.orders_current")
        tables = client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE 'orders%'")
        return rows["n"], sorted(t["name"] for t in tables)

    other = f"rights_{database}"
    with source.session() as cursor:
        cursor.execute(f"CREATE TABLE {other} (id INT, name VARCHAR(40), price NUMERIC(12, 2), n BIGINT)")
        cursor.execute(f"INSERT INTO {other} VALUES (1, 'a', 1, 1), (1, 'b', 1, 1)")
        if source.name == "postgres":
            cursor.execute("CREATE ROLE nobody LOGIN PASSWORD 'nobody'")
        else:
            cursor.execute("CREATE USER 'nobody'@'127.0.0.1' IDENTIFIED BY 'nobody'")
            cursor.execute("GRANT REPLICATION CLIENT ON *.* TO 'nobody'@'127.0.0.1'")
    before = state()
    for settings, said in (
        (("source.url=postgresql://127.0.0.1:1/shop",), "refuses the login"),
        (("source.username=nobody", "source.password=nobody"), "cannot be"),
        ((f"source.table={other}",), "is not unique in the source"),
        (("source.table=nowhere",), "cannot be described"),
    ):
        words = [word for setting in settings for word in ("--set", setting)]
        done = inside("resync", config, "--apply", "--patience", "1", *words)
        assert done.returncode == 1, done.stdout
        assert said in done.stderr
        assert state() == before
    with source.session() as cursor:
        cursor.execute(f"DELETE FROM orders_{database} WHERE id < 10")
    done = inside("resync", config, "--apply", "--patience", "1")
    assert done.returncode == 0, done.stderr
    assert state() == (ROWS - 10, before[1])


def test_a_resync_that_is_killed_again_and_again_leaves_the_table_whole(
    config: Path, source: Any, client: Client, database: str
) -> None:
    """SIGKILL of the command at moments from the making of the new table to its exchange; the next run is begun."""
    next_table = f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = 'orders__ch_sink_next'"

    def rows() -> int:
        return int(client.rows(f"SELECT count() AS n FROM {database}.orders_current")[0]["n"])

    with source.session() as cursor:
        cursor.execute(f"DELETE FROM orders_{database} WHERE id < 10")
    kills, left = 0, client.rows(next_table)
    while True:
        command = [sys.executable, "-m", "ch_sink", "resync", str(config), "--apply", "--patience", "3"]
        run = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        while run.poll() is None and client.rows(next_table) in ([], left):
            time.sleep(0.05)
        try:
            run.wait(0.5 * kills if kills < 12 else None)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        said = run.stdout.read() if run.stdout is not None else ""
        assert ("which an earlier run left" in said) == bool(left), said
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, said
        kills += 1
        left = client.rows(next_table)
        assert rows() in (ROWS, ROWS - 10)  # the one table or the other, whole
    assert kills > 2
    assert rows() == ROWS - 10
    assert client.rows(next_table) == []
    [status] = statuses([config])
    assert status["state"] != "paused"
