"""Runs one statement of ``init`` and finds out whether it changed anything."""

from typing import Literal

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.schema import execute
from ch_sink.errors import ClickHouseError
from ch_sink.table.ddl import Statement

__all__ = ["Outcome", "run_statement"]

Outcome = Literal["created", "changed", "unchanged"]

_DEFINITIONS = {
    "database": "SELECT name AS definition FROM system.databases WHERE name = {name:String}",
    "table": "SELECT name AS definition FROM system.tables WHERE database = {database:String} AND name = {name:String}",
    "view": "SELECT create_table_query AS definition FROM system.tables "
    "WHERE database = {database:String} AND name = {name:String}",
    "row policy": "SELECT arrayStringConcat(arraySort(groupArray(concat(short_name, ' ', select_filter))), ',') "
    "AS definition FROM system.row_policies WHERE database = {database:String} AND table = {table:String}",
}
"""The definition of an object, as far as a statement of ``init`` can change it; no row if it does not exist."""


def run_statement(client: Client, statement: Statement) -> Outcome:
    """Run the statement, unless what it creates exists. Raises ClickHouseError."""
    before = _definition(client, statement)
    if before and statement.if_not_exists and not statement.on_cluster:
        return "unchanged"
    execute(client, [statement.sql])
    if statement.kind in ("alter", "column types"):
        return "changed"
    if before and before == _definition(client, statement):
        return "unchanged"
    return "changed" if before and statement.kind == "view" else "created"


def _definition(client: Client, statement: Statement) -> str:
    """The object's definition, empty if it does not exist or is not visible to the user."""
    sql = _DEFINITIONS.get(statement.kind)
    if sql is None:
        return ""
    values = {"name": statement.name, "database": statement.database, "table": statement.table}
    where = {name: value for name, value in values.items() if f"{{{name}:" in sql}
    try:
        found = client.rows(sql, where, doing="look for what exists")
    except ClickHouseError:
        return ""
    return str(found[0]["definition"]) if found else ""
