"""Risky types, sent to each server and read back; servers that are too old."""

import pytest

from ch_sink.clickhouse import (
    EVERY_TYPE,
    FAMILIES,
    ClickHouseTableAdmin,
    Client,
    families_of,
    round_trip,
    sent_and_read,
    stored_and_read,
)
from ch_sink.clickhouse import client as client_module
from ch_sink.errors import ConfigError, TableError
from ch_sink.model.policy import policy_of
from tests.support.endpoint import on_engines

each_engine = on_engines("", "25.8", long=["26.3"])

TUPLE = "Nullable(Tuple)"


def create(client: Client, name: str, column: str) -> None:
    client.command(
        f"CREATE TABLE {name} (id Int64, {column}, _version UInt64) ENGINE = ReplacingMergeTree(_version) ORDER BY id",
        settings=EVERY_TYPE,
    )


@pytest.fixture
def swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the server showed another UUID than it was sent."""
    one = round_trip._SAMPLES["UUID"]
    wrong = round_trip._Sample(one.kind, one.value, "e711b35c-04c4-f061-a0db-d36a00a67b90")
    monkeypatch.setitem(round_trip._SAMPLES, "UUID", wrong)


@pytest.mark.sampled(1)
@each_engine
def test_values_of_risky_types_come_back_or_are_named(client: Client, database: str) -> None:
    # A null of this type is stored as an empty tuple up to 26.3.
    lost = set() if client.server_version >= "26.5" else {TUPLE}
    assert {one.family for one in sent_and_read(client, FAMILIES)} == lost
    assert {one.family for one in stored_and_read(client, database, policy_of(), FAMILIES)} == lost
    assert client.rows(f"SHOW TABLES FROM {database}") == [], "the table of the round trip is dropped"


@pytest.mark.usefixtures("swapped")
def test_what_the_server_shows_decides(client: Client, database: str) -> None:
    families = ["UUID", "Enum"]
    for changed in (sent_and_read(client, families), stored_and_read(client, database, policy_of(), families)):
        assert [(one.family, "became ['61f0c404" in one.why) for one in changed] == [("UUID", True)]


@pytest.mark.usefixtures("swapped")
def test_a_table_of_a_type_that_is_not_kept_is_refused_by_column(client: Client, database: str) -> None:
    create(client, f"{database}.fine", "v Int64")
    create(client, f"{database}.t", "u Array(UUID)")
    client.faithful = frozenset()
    ClickHouseTableAdmin(client, database, "fine", policy_of()).detect()
    with pytest.raises(TableError, match=r"column 'u' \(Array\(UUID\)\): .* became "):
        ClickHouseTableAdmin(client, database, "t", policy_of()).detect()


@each_engine
def test_a_null_tuple_is_kept_or_its_column_is_refused(client: Client, database: str) -> None:
    if client.server_version < "26":
        pytest.skip("this server has no such type")
    create(client, f"{database}.t", "n Nullable(Tuple(a UInt8))")
    client.faithful = frozenset()
    admin = ClickHouseTableAdmin(client, database, "t", policy_of())
    if client.server_version >= "26.5":
        assert admin.detect().column("n") is not None
    else:
        with pytest.raises(TableError, match="column 'n'"):
            admin.detect()


def test_a_type_is_tried_once(client: Client, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(client, f"{database}.t", "u UUID")
    client.faithful = frozenset()
    tried: list[list[str]] = []

    def note(_: Client, families: list[str]) -> list[round_trip.Changed]:
        tried.append(families)
        return []

    monkeypatch.setattr(round_trip, "sent_and_read", note)
    for _ in range(2):
        ClickHouseTableAdmin(client, database, "t", policy_of()).detect()
    assert tried == [["UUID"]]


@pytest.mark.parametrize(
    ("kind", "families"),
    [
        ("Nullable(String)", set()),
        ("Decimal(38, 2)", set()),
        ("Decimal(39, 2)", {"Decimal(76, 38)"}),
        ("LowCardinality(Nullable(String))", {"LowCardinality(Nullable)"}),
        ("Map(String, Tuple(a Array(UUID), t Time64(3)))", {"UUID", "Array(UUID)", "Time64"}),
        ("Nullable(Point)", {TUPLE}),
        ("SimpleAggregateFunction(anyLast, Nullable(Enum16('a' = 1)))", {"Enum"}),
        ("Array(JSON(a UUID))", set()),
    ],
)
def test_risky_types_are_found_at_any_depth(kind: str, families: set[str]) -> None:
    assert families_of([kind]) == families


@pytest.mark.parametrize("version", ["24.8.4.13", "25.3.14.14", "25.7.9.1"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"needs 25\.8 or later") as caught:
        client_module.expect_supported("http://here", version)
    assert caught.value.hint is not None


@pytest.mark.parametrize("version", ["25.8.2.1", "25.10.1.1-testing", "25.8.16.10001.altinitystable", "26.1", "head"])
def test_later_servers_and_unknown_versions_are_taken(version: str) -> None:
    client_module.expect_supported("http://here", version)


def test_a_client_of_a_server_that_is_too_old_is_not_made(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "OLDEST", (99, 1))
    with pytest.raises(ConfigError, match=r"needs 99\.1 or later"):
        Client(client.settings)
