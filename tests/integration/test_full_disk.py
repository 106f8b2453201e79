"""A disk that is full: a clear error, the table as it was, and nothing left behind."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import (
    ClickHouseSettings,
    Client,
    connect,
    execute,
)
from ch_sink.errors import ClickHouseError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.trust.refill import Refill
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.busy import feed_of
from tests.support.recorded import equal
from tests.support.state_tables import create_statement
from tests.support.trust import stores_of, subject_of

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 200 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small(disk: Path) -> Iterator[Client]:
    """A server whose disk that is."""
    with EmbeddedClickHouse(disk / "server") as server:
        client = connect(ClickHouseSettings(url=server.url))
        client.command("CREATE DATABASE shop")
        names = ("ledger", "dead_letters", "handover", "pending")
        execute(client, [create_statement(name, "shop", f"ch_sink_{name}") for name in names])
        yield client


def fill(disk: Path) -> Path:
    """Leave 64 KiB."""
    free = os.statvfs(disk)
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (64 << 10))
    return ballast


def test_a_full_disk_is_said_and_leaves_the_table_as_it_was(disk: Path, small: Client) -> None:
    feed = feed_of(small, "shop", "mariadb", "acct", "replacing")
    feed.run()
    feed.runner.stop()
    subject = subject_of(small, "shop", feed, "mariadb-busy-json_plain", ("id", "k"))
    refill = Refill(subject, *stores_of(subject), patience=0)
    tables = "SELECT name FROM system.tables WHERE database = 'shop' AND name LIKE 'acct%' ORDER BY name"
    before = small.rows(tables)
    ballast = fill(disk)
    with pytest.raises(ClickHouseError, match=r"(?i)space"):
        resynced(refill, apply=True, against="topic")
    with pytest.raises(ClickHouseError, match=r"(?i)space"), verified(subject, Options()):
        pass
    ballast.unlink()
    assert equal(small, "shop", "mariadb-busy", "mariadb", "acct") == []
    assert small.rows(tables) == before
    resynced(refill, apply=True, against="topic")
    assert equal(small, "shop", "mariadb-busy", "mariadb", "acct") == []
    assert small.rows(tables) == before
