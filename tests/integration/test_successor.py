"""The table beside the target that takes its place in one step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust.successor import SUFFIX, Successor, _engine
from tests.support.endpoint import settings_for
from tests.support.rights import Limited

pytestmark = pytest.mark.integration

COLUMNS = "(id Int64, n Int32, _version UInt128, _is_deleted UInt8)"
ENGINE = "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"


@pytest.fixture(params=["Atomic", "Ordinary"])
def kind_and_place(request: pytest.FixtureRequest, client: Client) -> Iterator[tuple[str, str]]:
    """A database whose tables have an id, and one that can only rename them."""
    name = f"placed_{request.param.lower()}"
    client.command(
        f"CREATE DATABASE {name} ENGINE = {request.param}", settings={"allow_deprecated_database_ordinary": 1}
    )
    yield request.param, name
    client.command(f"DROP DATABASE {name}")


def test_it_takes_the_place_of_the_table_under_its_view(client: Client, kind_and_place: tuple[str, str]) -> None:
    kind, place = kind_and_place
    client.command(f"CREATE TABLE {place}.t {COLUMNS} {ENGINE}")
    client.command(f"CREATE VIEW {place}.t_current AS SELECT id, n FROM {place}.t FINAL WHERE NOT _is_deleted")
    client.command(f"INSERT INTO {place}.t VALUES (1, 10, 1, 0)")
    successor = Successor(client, detect(client, place, "t", policy_of()), policy_of())
    made, said = successor.create(), list[str]()
    client.command(f"INSERT INTO {made.qualified} VALUES (2, 20, 1, 0)")
    successor.take_place(said.append)
    assert any("renaming" in line for line in said) == (kind == "Ordinary")
    assert client.rows(f"SELECT id, n FROM {place}.t_current") == [{"id": 2, "n": 20}]
    assert client.rows(f"SELECT id FROM {successor.qualified}") == [{"id": 1}]
    successor.dropped(said.append)
    tables = client.rows(f"SELECT name FROM system.tables WHERE database = '{place}' ORDER BY name")
    assert [row["name"] for row in tables] == ["t", "t_current"]
    client.command(f"INSERT INTO {place}.t VALUES (3, 30, 1, 0)")
    assert detect(client, place, "t", policy_of()).engine == successor.target.engine


@pytest.mark.parametrize(
    ("full", "kept"),
    [
        ("ReplicatedReplacingMergeTree('/tables/{shard}/t', '{replica}', v, d) ORDER BY id", False),
        ("ReplicatedReplacingMergeTree('/tables/{uuid}/{shard}', '{replica}', v, d) ORDER BY id", True),
        ("ReplicatedReplacingMergeTree(v, d) ORDER BY id", True),
        ("ReplacingMergeTree(v, d) ORDER BY id", True),
    ],
)
def test_a_replicated_one_gets_a_path_of_its_own(full: str, kept: bool) -> None:
    engine = full.partition("(")[0]
    found = {_engine(engine, full) for _ in range(3)}
    assert found == {full} if kept else len(found) == 3
    for text in found:
        assert text.startswith(full.partition("'")[0])
        assert text.endswith(full.rpartition("'")[2])
        assert kept or "'/tables/{shard}/t_" in text


def test_what_a_killed_run_left_is_named_and_dropped(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t {COLUMNS} {ENGINE}")
    client.command(f"""CREATE TABLE {database}.t{SUFFIX} {COLUMNS} {ENGINE} COMMENT 'ch_sink fills this table: {{}}'""")
    said = list[str]()
    Successor(client, detect(client, database, "t", policy_of()), policy_of()).clear(said.append)
    assert said == [f"dropping `{database}`.`t{SUFFIX}`, which an earlier run left"]
    assert client.rows(f"SHOW TABLES FROM {database}") == [{"name": "t"}]


@pytest.mark.long
def test_a_table_is_not_replaced_if_it_feeds_a_view_that_the_user_may_not_see(tmp_path: Path) -> None:
    limited = Limited(tmp_path)
    limited.clickhouse.start()
    client = Client(settings_for(limited.clickhouse.url))
    for sql in (
        "CREATE DATABASE shop",
        "CREATE DATABASE reports",
        f"CREATE TABLE shop.t {COLUMNS} {ENGINE}",
        "CREATE TABLE reports.sums (n Int64) ENGINE = MergeTree ORDER BY ()",
        "CREATE MATERIALIZED VIEW reports.adding TO reports.sums AS SELECT sum(n) AS n FROM shop.t",
    ):
        client.command(sql)
    client.close()
    limited.restart(["GRANT CREATE TABLE, DROP TABLE, SELECT, INSERT, ALTER TABLE ON shop.*", "GRANT READ ON FILE"])
    client = Client(settings_for(limited.clickhouse.url))
    try:
        with pytest.raises(StreamFailed, match=r"feeds the materialized view reports\.adding"):
            Successor(client, detect(client, "shop", "t", policy_of()), policy_of()).expect_possible()
    finally:
        client.close()
        limited.clickhouse.stop()
