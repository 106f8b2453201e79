"""Waits for inserts of a killed attempt that the server is still running."""

import time

from ch_sink.clickhouse.client import Client
from ch_sink.errors import ClickHouseError
from ch_sink.table.model import TargetTable

__all__ = ["wait_for_inserts"]


def wait_for_inserts(client: Client, table: TargetTable, patience: float = 60.0) -> None:
    """Return once no insert into the table is running, or after ``patience`` seconds.

    A lookup then sees each insert of a killed attempt whole or not at all.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            running = client.rows(
                "SELECT count() AS n FROM system.processes WHERE query_kind = 'Insert' AND has(tables, {table:String})",
                {"table": f"{table.database}.{table.name}"},
                doing="look for running inserts",
            )
        except ClickHouseError:
            return  # not allowed to see them: the token still drops a repeat
        if not running or not running[0]["n"]:
            return
        time.sleep(0.2)
