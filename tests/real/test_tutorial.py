"""The tutorial's commands run as they stand and print what it shows, with the stand's servers instead of containers."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.real.conftest import Stand
from tests.real.sink import ends
from tests.real.stand.postgres import PostgreSQL
from tests.support.endpoint import settings_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
TOPIC = "shop.public.orders"


def steps() -> list[tuple[str, str]]:
    """The blocks that a reader pastes into a shell, each with the output that the page shows below it, if any."""
    return re.findall(r"^```sh\n(.*?)^```\n(?:[^\n`]+\n)?(?:```text\n(.*?)^```)?", PAGE, re.MULTILINE | re.DOTALL)


def expect_shown(shown: str, said: str) -> None:
    """The lines were printed in this order; ``…`` stands for anything. Widths of columns depend on values."""
    lines = (" ".join(line.split()) for line in said.splitlines())
    for line in (" ".join(line.split()) for line in shown.splitlines()):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        assert line == "…" or any(pattern.fullmatch(printed) for printed in lines), f"{line!r} is not in\n{said}"


@pytest.fixture
def postgres(stand: Stand) -> PostgreSQL:
    """The database of step 1."""
    for source in stand.sources:
        if isinstance(source, PostgreSQL):
            with source.session() as cursor:
                cursor.execute("DROP TABLE IF EXISTS orders")  # another test's
                cursor.execute((ROOT / "compose" / "postgres" / "01_orders.sql").read_bytes())
            return source
    pytest.skip(stand.missing["postgres"])


def test_the_tutorial_runs_as_it_stands(
    stand: Stand, postgres: PostgreSQL, clickhouse: EmbeddedClickHouse, client: Client, tmp_path: Path
) -> None:
    client.command("CREATE DATABASE IF NOT EXISTS shop")
    settings = settings_for(clickhouse.url)
    here = {
        "http://localhost:8083": stand.connect.url,
        "localhost:29092": stand.kafka.bootstrap,
        "http://localhost:8123": clickhouse.url,
        "localhost:15432": f"127.0.0.1:{postgres.port}",
        '"database.hostname": "postgres", "database.port": "5432"': (
            f'"database.hostname": "127.0.0.1", "database.port": "{postgres.port}"'
        ),
        '"database.password": "ch_sink-demo"': '"database.password": "debezium"',
        "CH_SINK__SOURCE__PASSWORD=ch_sink-demo": "CH_SINK__SOURCE__PASSWORD=debezium",
        "CH_SINK__CLICKHOUSE__PASSWORD=ch_sink-demo": f"CH_SINK__CLICKHOUSE__PASSWORD={settings.password}",
        "username: sink": f"username: {settings.username}",
        "-u sink:ch_sink-demo": f"-u {settings.username}:{settings.password}",
        "docker compose -f compose/compose.yaml exec -T postgres psql -q -U debezium shop": (
            f"psql -q -h 127.0.0.1 -p {postgres.port} -U debezium shop"
        ),
    }
    program = tmp_path / "bin" / "ch_sink"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ch_sink "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PGPASSWORD": "debezium"}
    # An update, a delete with its tombstone, a row, and a changed key: a delete, its tombstone, a row.
    records = iter((4, 11))
    exports = ""
    for block, shown in steps():
        if block.startswith(("docker compose -f compose/compose.yaml up", "make venv")):
            continue
        for there, mine in here.items():
            block = block.replace(there, mine)
        if block.startswith("ch_sink init") or "run orders.yaml --once" in block:
            caught_up(stand, next(records) if "--once" in block else 4)
        said = run(exports + block, tmp_path, environ)
        expect_shown(shown, said)
        exports += "".join(f"{line}\n" for line in block.splitlines() if line.startswith("export "))
    rows = client.rows("SELECT region, id, amount, paid FROM shop.orders_current ORDER BY ALL")
    with postgres.session() as cursor:
        cursor.execute('SELECT region, id, amount, paid FROM orders ORDER BY region COLLATE "C", id')
        assert [tuple(row.values()) for row in rows] == [tuple(row) for row in cursor.fetchall()]
    assert len(rows) == 4


def caught_up(stand: Stand, records: int) -> None:
    """Wait until the connector has written so many records."""
    until = time.monotonic() + 120
    while ends(stand.kafka.bootstrap, [TOPIC])[TOPIC] < records:
        assert time.monotonic() < until, "the connector writes nothing"
        time.sleep(0.5)


def run(script: str, folder: Path, environ: dict[str, str]) -> str:
    """Run it in a shell; returns what it said."""
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr + done.stdout
