"""What the coordinator does with the target table: detect, alter and truncate it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.evolution import Evolution
from ch_sink.clickhouse.lookup import max_version
from ch_sink.clickhouse.required_settings import require_settings
from ch_sink.clickhouse.rollups import fill_rollups, planned_rollups
from ch_sink.clickhouse.round_trip import expect_faithful
from ch_sink.clickhouse.schema import detect, execute
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.truncate import own_rows, truncate_statement
from ch_sink.types.column import TypeChoices

__all__ = ["ClickHouseTableAdmin"]


@dataclass(frozen=True, slots=True)
class ClickHouseTableAdmin:
    """One table. ``cluster``: the cluster on which ``init`` created it, if any."""

    client: Client
    database: str
    table: str
    policy: Policy
    cluster: str | None = None
    types: TypeChoices = field(default_factory=TypeChoices)
    rollups: tuple[RollupChoice, ...] = ()

    def detect(self) -> TargetTable:
        require_settings(self.client)
        table = detect(self.client, self.database, self.table, self.policy)
        expect_faithful(self.client, table)
        return self._with_rollups(table)

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        evolution = Evolution(self.client, self.database, self.table, self.policy, self.cluster, self.types)
        return self._with_rollups(evolution.carry_out(table, columns, key))

    def fill_rollups(self, table: TargetTable, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool) -> None:
        fill_rollups(self.client, table, supersede, doubtful=doubtful)

    def _with_rollups(self, table: TargetTable) -> TargetTable:
        planned = planned_rollups(self.client, table, self.rollups, self.policy.columns) if self.rollups else ()
        return replace(table, rollups=planned)

    def truncate(self, table: TargetTable, version: int, version_column: str | None) -> None:
        execute(self.client, [truncate_statement(table, version, version_column)], of=table)

    def highest_version(self, table: TargetTable) -> int:
        return max_version(self.client, table, empty=-1, condition=own_rows(table, self.policy.columns))
