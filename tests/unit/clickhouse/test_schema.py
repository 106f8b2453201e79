"""Detection and DDL against the real engine."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client, detect, execute, server_facts
from ch_sink.errors import AccessDenied, ClickHouseError, TableNotFound
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import state_table
from ch_sink.table.spec import TableSpec
from tests.support.state_tables import create_statement


def test_a_table_that_does_not_exist(client: Client, database: str) -> None:
    with pytest.raises(TableNotFound, match=f"{database}.nope"):
        detect(client, database, "nope", policy_of())
    with pytest.raises(TableNotFound):
        detect(client, "no_such_database", "nope", policy_of())


class _Refusing:
    """A client that meets an error when it reads the table of column types."""

    def __init__(self, inner: Client, error: ClickHouseError) -> None:
        self.inner, self.error = inner, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def rows(self, sql: str, *given: Any, **named: Any) -> Any:
        if "ch_sink_columns" in sql:
            raise self.error
        return self.inner.rows(sql, *given, **named)


def test_column_types_that_may_not_be_read_are_no_missing_ones(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t (id UInt64, ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY id")
    denied: Any = _Refusing(client, AccessDenied("not enough privileges", code=497))
    with pytest.raises(AccessDenied) as caught:
        detect(denied, database, "t", policy_of())
    assert f"SELECT ON `{database}`.`ch_sink_columns`" in (caught.value.hint or "")
    broken: Any = _Refusing(client, ClickHouseError("cannot read", code=117))
    with pytest.raises(ClickHouseError, match="cannot read"):
        detect(broken, database, "t", policy_of())
    missing: Any = _Refusing(client, ClickHouseError("unknown table", code=60))
    assert [c.name for c in detect(missing, database, "t", policy_of()).columns] == ["id", "ver"]


def test_statements_run_in_order_and_stop_at_the_first_that_fails(client: Client, database: str) -> None:
    with pytest.raises(ClickHouseError, match="CREATE TABLE") as caught:
        execute(
            client,
            [
                f"CREATE TABLE {database}.a (x UInt8) ENGINE = MergeTree ORDER BY x",
                f"ALTER TABLE {database}.a ADD COLUMN y String",
                f"CREATE TABLE {database}.b (x NoSuchType) ENGINE = MergeTree ORDER BY x",
                f"DROP TABLE {database}.a",
            ],
        )
    assert caught.value.code == 50
    columns = client.rows(f"SELECT name FROM system.columns WHERE database = '{database}' AND table = 'a'")
    assert [c["name"] for c in columns] == ["x", "y"]


@pytest.mark.parametrize("name", ["ledger", "dead_letters", "handover", "pending"])
def test_the_sinks_own_tables_can_be_made_twice(client: Client, database: str, name: str) -> None:
    execute(client, [create_statement(name, database, f"my {name}")] * 2)


@pytest.mark.parametrize("name", ["ledger", "dead_letters", "handover", "pending"])
def test_the_sinks_own_tables_as_replicated_ones(name: str) -> None:
    spec = TableSpec("d", "t", cluster="c", replication="path")
    sql = state_table(name, spec)
    assert "ON CLUSTER `c`" in sql
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}', " in sql
    by_server = state_table(name, replace(spec, replication="server"))
    assert "ENGINE = ReplicatedReplacingMergeTree(" in by_server
    assert "'{replica}'" not in by_server
    assert "ENGINE = ReplacingMergeTree(" in create_statement(name, "d", name)


def test_server_facts(client: Client) -> None:
    facts = server_facts(client)
    assert facts.version == client.server_version
    assert facts.policies_after_final is True
    assert facts.timezone


def test_column_types_are_read_from_the_table_that_is_configured(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (id UInt64, d Date32, ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY id"
    )
    client.command(create_statement("columns", database, "notes"))
    client.command(
        f"INSERT INTO {database}.notes (database, table, column, type, uuid) SELECT database, name, 'd', "
        f"'io.debezium.time.Date', uuid FROM system.tables WHERE database = '{database}' AND name = 't'"
    )
    kept = detect(client, database, "t", policy_of(notes="notes"))
    assert [c.note for c in kept.columns if c.name == "d"] == ["io.debezium.time.Date"]
    assert [c.note for c in detect(client, database, "t", policy_of()).columns if c.name == "d"] == [""]


def test_an_alter_whose_mutation_fails_is_an_error(client: Client, database: str) -> None:
    """It has the code of one that a replica has not done yet, and the table cannot be read from then on."""
    client.command(f"CREATE TABLE {database}.t (x DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY tuple()")
    client.command(f"INSERT INTO {database}.t VALUES ('9999-12-31 00:00:00')")
    with pytest.raises(ClickHouseError) as refused:
        execute(client, [f"ALTER TABLE `{database}`.`t` MODIFY COLUMN x DateTime64(9, 'UTC')"])
    assert "KILL MUTATION" in (refused.value.hint or "")
    client.command(f"KILL MUTATION WHERE database = '{database}' SYNC")
