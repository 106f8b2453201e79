"""Waits for inserts of superseded executions that a server is still running."""

import time
from dataclasses import dataclass

from ch_sink.clickhouse.client import Client
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from ch_sink.types.sql import literal, quote

__all__ = ["await_earlier_inserts"]

# Sub-queries of a Distributed table have ids of their own, and chDB gives every query its own.
_ID = "if(startsWith(initial_query_id, 'ch_sink/'), initial_query_id, Settings['log_comment'])"
# By its text: an insert that waits for its first rows has no query_kind yet. A rollup is filled by a CREATE.
_INSERT = "match(trimLeft(query), '(?i)^(INSERT|CREATE OR REPLACE TABLE)')"
_POLL = 0.1
_PROCESSES = "system.processes"
_SKIP: dict[str, str | int] = {"skip_unavailable_shards": 1, "connect_timeout_with_failover_ms": 3000}
"""Each server counts as a shard in clusterAllReplicas."""


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
        ClickHouseUnavailable: one of them still runs after ``patience`` seconds, or may run on a server that is alive
            and does not answer.
        ClickHouseError: the server does not show what runs.
    """
    earlier = f"startsWith({_ID}, {literal(fence.partition_id)}) AND NOT startsWith({_ID}, {literal(fence.query_id)})"
    where = _Where(client, table, cluster)
    running, unnamed, silent = where.running(earlier)
    deadline = time.monotonic() + patience
    while running or unnamed or silent:
        if running:  # each time: one that has just begun may outlive a kill, or not show its name yet
            _kill(client, cluster, earlier)
        if time.monotonic() > deadline:
            raise _still_running(table, cluster, running | unnamed, patience)
        time.sleep(_POLL)
        running, still, silent = where.running(earlier)
        unnamed &= still


@dataclass(frozen=True, slots=True)
class _Where:
    """The servers on which inserts into one table may run."""

    client: Client
    table: TargetTable
    cluster: str | None

    def running(self, earlier: str) -> tuple[set[str], set[str], bool]:
        """Query ids of the earlier executions' inserts, and of the inserts into the table by a version without fences.

        And whether a server that may run some does not answer.
        """
        processes = f"clusterAllReplicas({literal(self.cluster)}, system.processes)" if self.cluster else _PROCESSES
        # Inserts of a version without fences: the table's name and the client's are all that is known of them.
        other = "position(query, {table:String}) AND position(http_user_agent, 'ch_sink')"
        found = self.client.rows(
            f"SELECT hostName() AS host, tcpPort() AS port, {earlier} AS named, groupArrayIf(query_id, {_INSERT} "
            f"AND (named OR ({other} AND NOT startsWith({_ID}, 'ch_sink/')))) AS ids "
            f"FROM {processes} GROUP BY host, port, named",
            {"table": self.table.qualified},
            settings=_SKIP if self.cluster else None,
            doing="look for inserts of an earlier job that still run",
        )
        named, unnamed = (
            {str(i) for row in found if bool(row["named"]) is wanted for i in row["ids"]} for wanted in (True, False)
        )
        # This query runs on each server that answers, so each has a row.
        answering = len({(row["host"], row["port"]) for row in found})
        return named, unnamed, self.cluster is not None and self._is_silent(self.cluster, answering)

    def _is_silent(self, cluster: str, answering: int) -> bool:
        """Whether a server does not answer that could still store rows.

        A server without a session in the keeper cannot: it is what commits the parts of a replicated table. One that
        has a session and is cut off from here may run an insert whose fence it has checked before. So a server counts
        as dead once the keeper says so, which takes it a session's time, 30 seconds by default.
        """
        [known] = self.client.rows(
            "SELECT count() AS n FROM system.clusters WHERE cluster = {cluster:String}",
            {"cluster": cluster},
            doing=f"count the servers of cluster {cluster}",
        )
        if answering >= int(known["n"]):
            return False
        table = self.table
        database, name = table.local or (table.database, table.name)
        if not table.engine.replicated:
            # Other servers hold no rows of a plain table, but those of a Distributed one.
            return table.distributed or table.engine.shared
        seen = self.client.rows(
            "SELECT zookeeper_path, count() AS answering, max(active_replicas) AS active, max(total_replicas) AS total "
            f"FROM clusterAllReplicas({literal(cluster)}, system.replicas) "
            "WHERE database = {database:String} AND table = {name:String} GROUP BY zookeeper_path",
            {"database": database, "name": name},
            settings=_SKIP,
            doing=f"ask which replicas of {table.qualified} are alive",
        )
        whole = sum(int(row["total"]) for row in seen) >= int(known["n"])
        return not whole or any(int(row["answering"]) < int(row["active"]) for row in seen)


def _still_running(table: TargetTable, cluster: str | None, ids: set[str], patience: float) -> ClickHouseUnavailable:
    if ids:
        return ClickHouseUnavailable(
            f"an insert of an earlier job into {table.qualified} still runs after {patience:.0f} s (query {min(ids)})",
            hint="Find it in system.processes and stop it with KILL QUERY; the stream then goes on.",
        )
    return ClickHouseUnavailable(
        f"a server of cluster {cluster} has not answered for {patience:.0f} s, and an insert of an earlier job into "
        f"{table.qualified} may still run there",
        hint="Start it, or take it out of the cluster's configuration; the stream then goes on.",
    )


def _kill(client: Client, cluster: str | None, where: str) -> None:
    """Stop inserts. A user may stop its own queries; one that may not waits for their end."""
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    try:
        client.command(
            f"KILL QUERY{on_cluster} WHERE {where} ASYNC",
            # Whether it has worked is looked at next; a server that is down would be given 180 seconds.
            settings={"distributed_ddl_task_timeout": 0},
            doing="stop inserts of an earlier job",
        )
    except ClickHouseUnavailable:
        raise
    except ClickHouseError:
        return
