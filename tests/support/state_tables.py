"""The sink's own tables, as `init` makes them, under any names."""

from ch_sink.table.ddl import state_table
from ch_sink.table.spec import TableSpec


def create_statement(template: str, database: str, name: str) -> str:
    """The CREATE TABLE statement of one of them (ledger, dead_letters, handover, pending, columns)."""
    return state_table(template, TableSpec(database, "", state_tables={template: name}))
