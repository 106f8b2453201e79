"""Tables that other sinks have made: how they are known, and what a table needs so that a stream can go on with it.

Each sink is a row of ``SINKS``. What they have in common makes the rest a rule: a ``ReplacingMergeTree`` whose version
is a ``UInt64``, with a column that marks deleted rows. If the engine does not know that column, a table whose engine
does can have the same parts.
"""

from dataclasses import dataclass

from ch_sink.table.engine_full import settings_sql
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.sql import quote


@dataclass(frozen=True, slots=True)
class OtherSink:
    """A sink whose tables are known by their columns."""

    name: str
    columns: tuple[str, ...]
    """Columns that its tables have. The first is the version, a ``UInt64``."""
    mark: str
    """The column that says of a row whether it was deleted."""


SINKS = (
    OtherSink("PeerDB or ClickPipes", ("_peerdb_version",), "_peerdb_is_deleted"),
    OtherSink("Altinity's sink connector", ("_version", "__is_deleted"), "__is_deleted"),
    OtherSink("Altinity's sink connector or ClickHouse's Kafka Connect sink", ("_version", "is_deleted"), "is_deleted"),
    OtherSink("Altinity's sink connector", ("_version", "_sign"), "_sign"),
)
"""Their public DDL: Altinity/clickhouse-sink-connector, ``ClickHouseAutoCreateTable.java``; PeerDB-io/peerdb,
``flow/connectors/clickhouse/normalize.go``; ClickHouse/clickhouse-kafka-connect, ``DebeziumRecordConvertor.java``."""


def maker_of(table: TargetTable) -> OtherSink | None:
    """The sink that has made the table or fills it; None if its columns are those of none."""
    types = {c.name: c.type for c in table.columns}
    return next(
        (s for s in SINKS if types.get(s.columns[0]) == "UInt64" and types.keys() >= set(s.columns)),
        None,
    )


def unused_mark(table: TargetTable) -> str | None:
    """The column that marks deleted rows and that the engine does not know; None if there is none."""
    engine, maker = table.engine, maker_of(table)
    if engine.family is not Family.REPLACING or engine.is_deleted_column or engine.sign_column or maker is None:
        return None
    column = table.column(maker.mark)
    return column.name if column is not None and column.type == "UInt8" else None


def with_mark(table: TargetTable, mark: str) -> list[str]:
    """Statements that put a table in its place which has the same parts and whose engine knows the mark.

    The parts are linked, not copied. The former table stays as it was, under the name with ``_before``.
    """
    database, name = table.local or (table.database, table.name)
    here, before = f"{quote(database)}.{quote(name)}", f"{quote(database)}.{quote(name + '_before')}"
    everywhere = f" ON CLUSTER {quote(table.cluster)}" if table.cluster else ""
    engine = f"{table.engine.name.removeprefix('Shared')}({quote(table.engine.version_column or '')}, {quote(mark)})"
    # The server takes the columns and the keys from the table behind AS, but not its TTL and settings.
    clauses = [engine, f"TTL {table.ttl}" if table.ttl else "", settings_sql(table.settings)]
    return [
        f"CREATE TABLE {before}{everywhere} AS {here} ENGINE = {' '.join(filter(None, clauses))}",
        f"ALTER TABLE {before}{everywhere} ATTACH PARTITION ALL FROM {here}",
        f"EXCHANGE TABLES {here} AND {before}{everywhere}",
    ]
