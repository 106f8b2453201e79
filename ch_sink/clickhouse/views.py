"""The views that a server has beside a table, and which of them are the product's own."""

from collections.abc import Iterable, Sequence

from ch_sink.clickhouse.client import Client
from ch_sink.table.ddl import Statement
from ch_sink.table.views import Shown


def shown_views(client: Client, database: str, names: Sequence[str]) -> dict[str, Shown]:
    """What exists under these names of a database. Raises ClickHouseError."""
    found = client.rows(
        "SELECT name, engine, comment, (SELECT groupArray((table, name, type)) FROM system.columns "
        "WHERE database = {database:String} AND table IN {names:Array(String)}) AS columns "
        "FROM system.tables WHERE database = {database:String} AND name IN {names:Array(String)}",
        {"database": database, "names": list(names)},
        doing="look at the views",
    )
    return {
        str(row["name"]): Shown(
            str(row["engine"]),
            str(row["comment"]),
            {str(name): str(kind) for view, name, kind in row["columns"] if view == row["name"]},
        )
        for row in found
    }


def without_foreign(client: Client, statements: Iterable[Statement]) -> tuple[list[Statement], list[str]]:
    """The statements without those of views whose name somebody else has taken, and these names.

    Raises ClickHouseError.
    """
    statements = list(statements)
    names = [s.name for s in statements if s.kind == "view"]
    shown = shown_views(client, statements[0].database, names) if names else {}
    foreign = [name for name, view in shown.items() if not view.kept]
    return [s for s in statements if s.kind != "view" or s.name not in foreign], foreign
