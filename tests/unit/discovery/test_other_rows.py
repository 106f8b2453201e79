"""Rows of another writer: whether a stream can go on with them."""

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.discovery.init_plan import other_rows
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import Finding
from tests.unit.discovery.test_obstacles import config

pytestmark = pytest.mark.integration


def found(client: Client, database: str, kind: str, newest: str) -> Finding | None:
    client.command(f"CREATE TABLE {database}.t (id Int64, v {kind}) ENGINE = ReplacingMergeTree(v) ORDER BY id")
    client.command(f"INSERT INTO {database}.t VALUES (1, {newest})")
    place = {"url": client.settings.url, "database": database, "table": "t"}
    return other_rows(config(clickhouse=place), client, detect(client, database, "t", policy_of()), ("id",))


@pytest.mark.parametrize(
    ("kind", "newest"), [("UInt128", 77), ("UInt128", 1 << 90), ("UInt64", 2_100_000_000_000_000_000)]
)
def test_rows_below_the_versions_of_the_stream_are_well(client: Client, database: str, kind: str, newest: int) -> None:
    one = found(client, database, kind, str(newest))
    assert one.level == "ok"
    assert f"versions up to {newest}, but the ledger has no entry of this stream: another writer" in one.detail


@pytest.mark.parametrize("kind", ["UInt64", "Int64", "UInt128"])
def test_rows_above_which_no_version_fits_are_a_failure(client: Client, database: str, kind: str) -> None:
    bits = {"UInt64": 64, "Int64": 63, "UInt128": 128}[kind]
    failed = found(client, database, kind, str((1 << bits) - 1))
    assert (failed.level, "no room above" in failed.detail) == ("fail", True)
    assert "a new table" in (failed.remedy or "")


def test_rows_whose_versions_are_times_win_over_earlier_changes(client: Client, database: str) -> None:
    warned = found(client, database, "DateTime64(3)", "now64(3)")
    assert (warned.level, "an earlier time" in warned.detail) == ("warn", True)
