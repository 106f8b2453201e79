"""Waits for inserts of superseded executions that a server is still running."""

import time

from ch_sink.clickhouse.client import Client
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from ch_sink.types.sql import literal, quote

__all__ = ["await_earlier_inserts"]

# Sub-queries of a Distributed table have ids of their own, and chDB gives every query its own.
_ID = "if(startsWith(initial_query_id, 'ch_sink/'), initial_query_id, Settings['log_comment'])"
# By its text: an insert that waits for its first rows has no query_kind yet.
_INSERT = "startsWith(upper(trimLeft(query)), 'INSERT')"
_POLL = 0.1


def await_earlier_inserts(
    client: Client,
    table: TargetTable,
    fence: Fence,
    *,
    cluster: str | None = None,
    patience: float = 120.0,
) -> None:
    """Return once no insert into the partition's rows runs that an earlier execution sent.

    Lookups then see each of them whole or not at all, and later ones are refused by their fence. They are killed, since
    the client of a running one may be frozen in mid-request. Inserts of a version without fences have no such ids:
    those that run now are waited for.

    Args:
        fence: the execution that begins now.
        cluster: the cluster on whose servers the inserts may run; by default this server only.

    Raises:
        ClickHouseUnavailable: one of them still runs after ``patience`` seconds.
        ClickHouseError: the server does not show what runs.
    """
    earlier = f"startsWith({_ID}, {literal(fence.partition_id)}) AND NOT startsWith({_ID}, {literal(fence.query_id)})"
    running, unnamed = _running(client, table, cluster, earlier)
    deadline = time.monotonic() + patience
    while running or unnamed:
        if running:  # each time: one that has just begun may outlive a kill, or not show its name yet
            _kill(client, cluster, earlier)
        if time.monotonic() > deadline:
            raise ClickHouseUnavailable(
                f"an insert of an earlier job into {table.qualified} still runs after {patience:.0f} s "
                f"(query {min(running | unnamed)})",
                hint="Find it in system.processes and stop it with KILL QUERY; the stream then goes on.",
            )
        time.sleep(_POLL)
        running, still = _running(client, table, cluster, earlier)
        unnamed &= still


def _running(client: Client, table: TargetTable, cluster: str | None, earlier: str) -> tuple[set[str], set[str]]:
    """Query ids of the earlier executions' inserts, and of the inserts into the table by a version without fences."""
    processes = f"clusterAllReplicas({literal(cluster)}, system.processes)" if cluster else "system.processes"
    # Inserts of a version without fences: the table's name and the client's are all that is known of them.
    other = "position(query, {table:String}) AND position(http_user_agent, 'ch_sink')"
    found = client.rows(
        f"SELECT query_id, {earlier} AS named FROM {processes} WHERE {_INSERT} "
        f"AND (named OR ({other} AND NOT startsWith({_ID}, 'ch_sink/')))",
        {"table": table.qualified},
        doing="look for inserts of an earlier job that still run",
    )
    named = {str(row["query_id"]) for row in found if row["named"]}
    return named, {str(row["query_id"]) for row in found} - named


def _kill(client: Client, cluster: str | None, where: str) -> None:
    """Stop inserts. A user may stop its own queries; one that may not waits for their end."""
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    try:
        client.command(f"KILL QUERY{on_cluster} WHERE {where} ASYNC", doing="stop inserts of an earlier job")
    except ClickHouseUnavailable:
        raise
    except ClickHouseError:
        return
