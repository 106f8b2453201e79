"""What is behind the URL of a stream: which servers answer, and whether reads of replicas can be trusted."""

from ch_sink.clickhouse import Client, has_quorum
from ch_sink.config import Config
from ch_sink.discovery.job_topics import existing_tables
from ch_sink.errors import ClickHouseError, ConfigError
from ch_sink.table.model import TargetTable
from ch_sink.table.replica_checks import Servers

__all__ = ["expect_same_engine", "servers_of"]

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
    own = config.tables
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
