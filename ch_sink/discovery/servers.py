"""The servers behind the URL of a stream: which answer, and whether reads of replicas can be trusted."""

from collections.abc import Iterator
from dataclasses import dataclass

from ch_sink.clickhouse import Client, has_quorum
from ch_sink.config import Config
from ch_sink.discovery.job_topics import existing_tables
from ch_sink.errors import ClickHouseError, ConfigError
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable

_TITLE = "replicas"
_NAME_CLUSTER = "Set clickhouse.cluster to the cluster of these servers (SELECT DISTINCT cluster FROM system.clusters)."


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers behind the URL of a stream."""

    names: tuple[str, ...]
    """The servers that answered some new connections."""
    user: str
    cluster: str | None
    """``clickhouse.cluster``."""
    plain_state_tables: tuple[str, ...] = ()
    """The sink's own tables that are not replicated."""
    replicas: int = 1
    """Of the target, whether the URL leads to them or not."""
    quorum: bool = False
    """Inserts have a quorum, and one at a time."""
    may_sync: bool = True
    """The user may run ``SYSTEM SYNC REPLICA`` on the target."""


def replica_findings(table: TargetTable, servers: Servers) -> Iterator[Finding]:
    """Findings about replicas; none for one server with a table that is not replicated."""
    engine, several = table.engine, ", ".join(servers.names)
    if engine.shared:
        return
    if not engine.replicated:
        if len(servers.names) > 1:
            yield Finding(
                "fail",
                _TITLE,
                f"clickhouse.url leads to several servers ({several}), and {engine.name} is not replicated: each would "
                "hold some of the rows",
                "Name one server in clickhouse.url, or create the table with a Replicated engine.",
            )
        return
    found = [*_of_state_tables(servers, several), *_processes(servers, several), *_reads(table, servers)]
    yield from found
    if not found:
        how = (
            "insert_quorum, one insert at a time" if servers.quorum else "a replica is brought up to date before reads"
        )
        yield Finding("ok", _TITLE, f"{several or 'one server'}: {how}")


def _of_state_tables(servers: Servers, several: str) -> Iterator[Finding]:
    plain = ", ".join(servers.plain_state_tables)
    if plain and len(servers.names) > 1:
        yield Finding(
            "fail",
            _TITLE,
            f"clickhouse.url leads to several servers ({several}), and the sink's own tables {plain} are not "
            "replicated: a job would not find what it has recorded",
            "Name one server in clickhouse.url, or recreate these tables with `ch_sink init` and a Replicated engine.",
        )
    elif plain and servers.replicas > 1:
        yield Finding(
            "fail",
            _TITLE,
            f"the table has {servers.replicas} replicas, and the sink's own tables {plain} are not replicated: after "
            "a fail-over a job would not find what it has recorded, and would store changes again",
            "Recreate these tables with `ch_sink init` and init.replication: server or path.",
        )


def _processes(servers: Servers, several: str) -> Iterator[Finding]:
    if len(servers.names) > 1 and servers.cluster is None:
        yield Finding(
            "fail",
            _TITLE,
            f"clickhouse.url leads to several servers ({several}): without clickhouse.cluster, inserts of an earlier "
            "job that still run on another one are not seen",
            _NAME_CLUSTER,
        )
    elif servers.replicas > 1 and servers.cluster is None:
        yield Finding(
            "warn",
            _TITLE,
            f"the table has {servers.replicas} replicas, and clickhouse.cluster is not set: views are changed on one "
            "server, resync refuses, and after a fail-over inserts that still run on the other server are not seen",
            _NAME_CLUSTER,
        )


def _reads(table: TargetTable, servers: Servers) -> Iterator[Finding]:
    if table.distributed:
        local = ".".join(table.local) if table.local is not None else "the table behind it"
        # No setting helps: with a quorum and one insert at a time, inserts through a Distributed table were
        # acknowledged and not stored (ClickHouse issue 97557, seen by PeerDB on 26.6, its issue 4746).
        yield Finding(
            "fail",
            _TITLE,
            f"{table.qualified} is Distributed over replicated tables: a lagging replica may answer lookups, and the "
            "server may lose inserts under the quorum that would prevent it",
            f"If it has one shard, name {local} in clickhouse.database and "
            "clickhouse.table, and its cluster in clickhouse.cluster. Several replicated shards are not supported.",
        )
        return
    if not servers.quorum and not servers.may_sync:
        yield Finding(
            "fail",
            _TITLE,
            f"user {servers.user} may not run SYSTEM SYNC REPLICA: a lagging replica may answer a lookup",
            f"GRANT SYSTEM SYNC REPLICA ON {table.qualified} TO {servers.user};\n"
            "Or set insert_quorum: auto and insert_quorum_parallel: 0 in clickhouse.settings.",
        )


_CONNECTIONS = 4
"""New connections that are tried: a balancer with two servers hides one of them once in eight times."""


def servers_of(config: Config, client: Client, table: TargetTable) -> Servers:
    """Raises ClickHouseError."""
    return Servers(
        names=_names(client),
        user=client.settings.username,
        cluster=config.clickhouse.cluster,
        plain_state_tables=_plain_state_tables(config, client),
        replicas=client.total_replicas(table),
        quorum=has_quorum(dict(client.settings.settings)),
        may_sync=not table.engine.replicated or table.distributed or _may_sync(client, table),
    )


def expect_same_engine(config: Config, client: Client, table: TargetTable) -> None:
    """Raises ConfigError if ``init`` would create plain tables of the sink beside a replicated target.

    After a fail-over the other server would have the target, and nothing of what was recorded.
    """
    if not table.engine.replicated or config.init.replication != "none":
        return
    existing = existing_tables(client, config.state_database, _state_tables(config))
    if lacking := sorted({*_state_tables(config)} - existing):
        raise ConfigError(
            f"{table.qualified} is replicated, and with init.replication: none the sink's own tables "
            f"({', '.join(lacking)}) would not be",
            hint="Set init.replication: path or server, and clickhouse.cluster to the cluster of its replicas.",
        )


def _state_tables(config: Config) -> tuple[str, ...]:
    own = config.state_tables
    return own.ledger, own.pending, own.handover, own.dead_letters, own.columns


def _plain_state_tables(config: Config, client: Client) -> tuple[str, ...]:
    existing = existing_tables(client, config.state_database, _state_tables(config))
    return tuple(
        name
        for name in _state_tables(config)
        if name in existing and not client.is_replicated(config.state_database, name)
    )


def _names(client: Client) -> tuple[str, ...]:
    found = set()
    for _ in range(_CONNECTIONS):
        other = Client(client.settings)
        # What the driver asks on its own is not noted.
        other.rows("SELECT 1 AS one", doing="ask which server answers")
        found.add(other.answered_by)
        other.close()
    return tuple(sorted(found - {""}))


def _may_sync(client: Client, table: TargetTable) -> bool:
    try:
        client.sync(table.qualified)
    except ClickHouseError:
        return False
    return True
