"""Tables for recorded streams as users create them by hand: columns of the right types, no comments of the sink's."""

from ch_sink.clickhouse import Client
from ch_sink.types import WIDE, clickhouse_type
from ch_sink.types.build import default_sql
from ch_sink.types.chtype import parse_type
from ch_sink.types.connect import RowSchema, SourceType
from ch_sink.types.sql import literal, quote

__all__ = ["create_by_hand", "described"]

_SYSTEM = {
    "ReplacingMergeTree(_version, _is_deleted)": "_version UInt128, _is_deleted UInt8",
    "MergeTree": "_op LowCardinality(String), _sign Int8, _version UInt128",
}


def create_by_hand(client: Client, database: str, table: str, schema: RowSchema) -> None:
    """Create the table that a user who knows the source's types (``schema``) would write."""
    key = {f.name for f in schema.key}
    columns = []
    for field in schema.fields:
        kind = clickhouse_type(field.type, key=field.name in key)
        noted = _noted_by_hand(field.type, kind)
        comment = f" COMMENT {literal(noted)}" if noted else ""
        default = default_sql(field.type, kind) if field.name not in key else None
        shown = f" DEFAULT {default}" if default else ""
        columns.append(f"{quote(field.name)} {kind}{shown}{comment}")
    engine = "ReplacingMergeTree(_version, _is_deleted)" if key else "MergeTree"
    order = ", ".join(quote(f.name) for f in schema.key)
    client.command(
        f"CREATE TABLE {quote(database)}.{quote(table)} ({', '.join(columns)}, {_SYSTEM[engine]}) "
        f"ENGINE = {engine} ORDER BY ({order})"
    )


def _noted_by_hand(source: SourceType, kind: str) -> str:
    """What docs/types.md asks for where the column's type cannot say it: values in a String that are not text."""
    if parse_type(kind).bare.name == "String" and (source.kind != "string" or WIDE in source.parameters):
        return source.to_comment()
    return "the user's own" if source.kind == "boolean" else ""


def described(client: Client, database: str, table: str) -> list[tuple[str, ...]]:
    """Name, type and comment of every column."""
    rows = client.rows(
        "SELECT name, type, comment FROM system.columns WHERE database = {d:String} AND table = {t:String} "
        "ORDER BY position",
        {"d": database, "t": table},
    )
    return [tuple(map(str, row.values())) for row in rows]
