"""What is behind the URL of a stream: which servers answer, and whether reads of replicas can be trusted."""

from ch_sink.clickhouse import Client, has_quorum
from ch_sink.config import Config
from ch_sink.errors import ClickHouseError
from ch_sink.table.model import TargetTable
from ch_sink.table.replica_checks import Servers

__all__ = ["servers_of"]

_CONNECTIONS = 4
"""New connections that are tried: a balancer with two servers hides one of them once in eight times."""


def servers_of(config: Config, client: Client, table: TargetTable) -> Servers:
    """Raises ClickHouseError."""
    own = config.tables
    state_tables = (own.ledger, own.pending, own.handover, own.dead_letters)
    return Servers(
        names=_names(client),
        user=client.settings.username,
        cluster=config.clickhouse.cluster,
        plain_state_tables=tuple(t for t in state_tables if not client.is_replicated(config.state_database, t)),
        quorum=has_quorum(dict(client.settings.settings)),
        may_sync=not table.engine.replicated or table.distributed or _may_sync(client, table),
    )


def _names(client: Client) -> tuple[str, ...]:
    found = set()
    for _ in range(_CONNECTIONS):
        other = Client(client.settings)
        found.add(other.answered_by)
        other.close()
    return tuple(sorted(found - {""}))


def _may_sync(client: Client, table: TargetTable) -> bool:
    try:
        client.command(f"SYSTEM SYNC REPLICA {table.qualified}", doing="bring this replica up to date")
    except ClickHouseError:
        return False
    return True
