"""Row policies of the embedded engine: kept in a file, and given to chDB as the filters of its users file."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

__all__ = ["users_xml"]


def users_xml(filters: Sequence[tuple[str, str, str]]) -> str:
    """The users file: the one user ``default`` with all rights, and a filter for each (database, table, condition)."""
    databases: dict[str, dict[str, str]] = {}
    for database, table, condition in filters:
        databases.setdefault(database, {})[table] = condition
    inner = "".join(
        f"<{database}>"
        + "".join(f"<{table}><filter>{escape(c)}</filter></{table}>" for table, c in tables.items())
        + f"</{database}>"
        for database, tables in databases.items()
    )
    return (
        "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default>"
        "<password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        "<access_management>1</access_management><named_collection_control>1</named_collection_control>"
        f"<databases>{inner}</databases></default></users></clickhouse>\n"
    )
