"""Columns that the table computes from others, and that do not take a NULL of those."""

from collections.abc import Collection, Iterator

from ch_sink.clickhouse import Client
from ch_sink.errors import ClickHouseError
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import columns_in, quote

__all__ = ["computed_findings"]


def computed_findings(client: Client, table: TargetTable, stated: Collection[str]) -> Iterator[Finding]:
    """A finding for each such column; the server says what type its expression has.

    ``stated``: columns that the events state, which the table does not compute.
    """
    nullable = {c.name for c in table.columns if parse_type(c.type).nullable}
    asked = [
        (column, sorted(nullable & columns_in(column.default_expression, {c.name for c in table.columns})))
        for column in table.columns
        if column.default_kind in ("MATERIALIZED", "DEFAULT")
        and column.name not in stated
        and column.name not in nullable
    ]
    asked = [(column, inputs) for column, inputs in asked if inputs]
    if not asked:
        return
    listed = ", ".join(f"{column.default_expression} AS {quote(f'c{i}')}" for i, (column, _) in enumerate(asked))
    try:
        found = client.rows(
            f"DESCRIBE TABLE (SELECT {listed} FROM {table.qualified})", doing=f"look at columns of {table.qualified}"
        )
    except ClickHouseError as error:
        yield Finding("warn", "computed columns", str(error), error.hint)
        return
    for (column, inputs), row in zip(asked, found, strict=True):
        if parse_type(str(row["type"])).nullable:
            names = ", ".join(inputs)
            yield Finding(
                "warn",
                "computed columns",
                f"{column.name} is computed from {names} as a {row['type']}: a NULL of it would stop the stream",
                f"Use ifNull in its expression ({column.default_expression}), or make {column.name} Nullable.",
            )
