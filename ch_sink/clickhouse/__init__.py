"""ClickHouse over HTTP: the client, and the ports that are implemented by ClickHouse tables."""

from ch_sink.clickhouse.client import Client, connect, disconnect
from ch_sink.clickhouse.dead_letters import ClickHouseDeadLetters
from ch_sink.clickhouse.fence import await_earlier_inserts
from ch_sink.clickhouse.ledger import ClickHouseLedger, write_together
from ch_sink.clickhouse.ledger_table import ClickHouseStreamStates
from ch_sink.clickhouse.lookup import AnyKeyLookup, ClickHouseLookup, has_rows, max_version, may_have_rows
from ch_sink.clickhouse.replicas import has_quorum
from ch_sink.clickhouse.rollups import expect_free_names, planned_rollups
from ch_sink.clickhouse.round_trip import FAMILIES, families_of, sent_and_read, stored_and_read
from ch_sink.clickhouse.schema import detect, execute, has_nullable_tuple, server_facts
from ch_sink.clickhouse.settings import EVERY_TYPE, ClickHouseSettings, Retry
from ch_sink.clickhouse.table_admin import (
    ClickHouseTableAdmin,
    run_statement,
    shown_views,
    unfitting_view,
    without_foreign,
)
from ch_sink.clickhouse.waiting import ClickHouseHandover, ClickHousePending
from ch_sink.clickhouse.writer import ClickHouseWriter

__all__ = [
    "EVERY_TYPE",
    "FAMILIES",
    "AnyKeyLookup",
    "ClickHouseDeadLetters",
    "ClickHouseHandover",
    "ClickHouseLedger",
    "ClickHouseLookup",
    "ClickHousePending",
    "ClickHouseSettings",
    "ClickHouseStreamStates",
    "ClickHouseTableAdmin",
    "ClickHouseWriter",
    "Client",
    "Retry",
    "await_earlier_inserts",
    "connect",
    "detect",
    "disconnect",
    "execute",
    "expect_free_names",
    "families_of",
    "has_nullable_tuple",
    "has_quorum",
    "has_rows",
    "max_version",
    "may_have_rows",
    "planned_rollups",
    "run_statement",
    "sent_and_read",
    "server_facts",
    "shown_views",
    "stored_and_read",
    "unfitting_view",
    "without_foreign",
    "write_together",
]
