"""What filling a table needs, from a stream's configuration."""

from ch_sink.clickhouse import ClickHousePending, ClickHouseStreamStates
from ch_sink.config import Config
from ch_sink.trust.refill import Refill
from ch_sink.trust.stoppable import Check, never_stops
from ch_sink.trust.wiring import handover_of, subject_of
from ch_sink.types.sql import quote

__all__ = ["refill_of"]


def refill_of(config: Config, patience: float, check: Check = never_stops) -> Refill:
    """The stream's table, topic and source. Raises ChSinkError if one of them is missing."""
    subject = subject_of(config, check)
    client, tables, place = subject.client, config.tables, config.clickhouse
    return Refill(
        subject,
        ClickHouseStreamStates(client, config.state_database, tables.ledger),
        ClickHousePending(client, config.state_database, tables.pending, config.stream_name),
        handover_of(config, client)(subject.table),
        f"{quote(place.database)}.{quote(subject.settings.policy.table.notes)}",
        place.cluster,
        patience,
    )
