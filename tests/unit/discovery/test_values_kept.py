"""What ``check`` says of types whose values a server does not give back."""

import pytest

from ch_sink.clickhouse import Client, detect, round_trip
from ch_sink.discovery import findings
from ch_sink.errors import AccessDenied
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import Finding
from tests.unit.discovery.test_obstacles import config


def look(client: Client, database: str, column: str) -> list[Finding]:
    client.command(
        f"CREATE TABLE {database}.t (id Int64, {column}, _version UInt64) ENGINE = ReplacingMergeTree(_version) "
        "ORDER BY id"
    )
    table = detect(client, database, "t", policy_of())
    return list(findings._values_kept(config(), client, table))


@pytest.fixture
def swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the server showed another UUID than it was sent."""
    one = round_trip._SAMPLES["UUID"]
    monkeypatch.setitem(round_trip._SAMPLES, "UUID", round_trip._Sample(one.kind, one.value, "another"))


def test_all_types_come_back(client: Client, database: str) -> None:
    [found] = look(client, database, "u UUID")
    assert (found.level, found.title) == ("ok", "round trip")


@pytest.mark.usefixtures("swapped")
@pytest.mark.parametrize(("column", "level"), [("u Array(UUID)", "fail"), ("v String", "warn")])
def test_only_a_type_that_the_table_has_fails(client: Client, database: str, column: str, level: str) -> None:
    [found] = look(client, database, column)
    assert found.level == level
    assert "became ['61f0c404-5cb3-11e7-907b-a6006ad3dba0', None]" in found.detail
    assert ("column u:" in found.detail) == (level == "fail")


@pytest.mark.usefixtures("swapped")
def test_without_the_right_to_a_table_values_are_still_sent_and_read(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AccessDenied("could not create a table: not enough privileges")

    monkeypatch.setattr(findings, "stored_and_read", refuse)
    warned, failed = look(client, database, "u UUID")
    assert (warned.level, failed.level) == ("warn", "fail")
    assert warned.remedy == f"GRANT CREATE TABLE, DROP TABLE, SELECT, INSERT ON `{database}`.* TO `default`;"
