"""Rows of another writer: which floor lifts a stream's versions above theirs."""

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.config import Config
from ch_sink.discovery.other_rows import other_rows
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import Finding

pytestmark = pytest.mark.integration


def found(client: Client, database: str, kind: str, newest: str, floor: int = 0) -> Finding | None:
    client.command(f"CREATE TABLE {database}.t (id Int64, v {kind}) ENGINE = ReplacingMergeTree(v) ORDER BY id")
    client.command(f"INSERT INTO {database}.t VALUES (1, {newest})")
    config = Config.model_validate(
        {
            "kafka": {"topic": "t", "bootstrap.servers": "nowhere:1"},
            "clickhouse": {"url": client.settings.url, "database": database, "table": "t"},
            "version": {"floor": floor},
        }
    )
    return other_rows(config, client, detect(client, database, "t", policy_of()), ("id",))


@pytest.mark.parametrize(
    ("kind", "newest", "floor"),
    [
        ("UInt128", 77, 1 << 32),
        ("UInt128", 1 << 90, (1 << 90) + (1 << 32)),
        ("UInt64", 2_100_000_000_000_000_000, 2_100_000_001_403_912_192),
    ],
)
def test_the_floor_that_is_proposed_settles_the_warning(
    client: Client, database: str, kind: str, newest: int, floor: int
) -> None:
    warned = found(client, database, kind, str(newest))
    assert warned is not None
    assert (warned.level, warned.remedy) == ("warn", f"version:\n  floor: {floor}")
    assert str(newest) in warned.detail
    client.command(f"DROP TABLE {database}.t")
    assert found(client, database, kind, str(newest), floor) is None


def test_rows_above_which_no_version_fits_are_a_failure(client: Client, database: str) -> None:
    failed = found(client, database, "UInt64", str((1 << 64) - 1))
    assert failed is not None
    assert failed.level == "fail"
    assert "leaves no room" in failed.detail
    assert "ch_sink resync" in (failed.remedy or "")


def test_a_floor_that_does_not_fit_is_a_failure(client: Client, database: str) -> None:
    failed = found(client, database, "Int64", "5", (1 << 63) - 1)
    assert failed is not None
    assert failed.level == "fail"
    assert "version.floor" in failed.detail


def test_no_floor_is_proposed_where_versions_are_times(client: Client, database: str) -> None:
    warned = found(client, database, "DateTime64(3)", "now64(3)")
    assert warned is not None
    assert warned.level == "warn"
    assert "floor" not in (warned.remedy or "")
