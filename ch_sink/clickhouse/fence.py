"""Fences: only the newest execution of a partition, under the newest claim of its stream, may insert.

The insert itself asks the ledger (``condition``). ClickHouse evaluates that question when the statement begins, so a
statement that began before a newer execution was registered may still finish: the newer one waits for those
(`ch_sink.clickhouse.running_inserts`) before it looks anything up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports import Claim, Execution
from ch_sink.stream.claims import displaced, superseded
from ch_sink.types.sql import literal

__all__ = ["CLAIM_BITS", "ClickHouseFence", "rank"]

CLAIM_BITS = 40


def rank(execution: Execution) -> int:
    """Orders the executions of a partition: by claim, then by number. It is the version of their row in the ledger."""
    return execution.claim << CLAIM_BITS | execution.number


@dataclass(frozen=True, slots=True)
class ClickHouseFence:
    """The Fence of one execution."""

    table: StateTable
    """The ledger."""
    stream: str
    own: Execution
    claim: Claim | None
    repeats: bool
    newest_claim: Callable[[], Claim | None] = field(repr=False)

    @property
    def execution(self) -> str:
        return f"{self.own.claim}-{self.own.number}-{self.own.id}"

    @property
    def query_id(self) -> str:
        return f"{self.partition_id}{self.execution}/"

    @property
    def partition_id(self) -> str:
        return f"ch_sink/{self.stream}/{self.own.topic_id}/{self.own.partition}/"

    @property
    def condition(self) -> str:
        mine = [literal(self.own.id)]
        asked = [f"argMaxIf(run_id, (written, run_id), {self._executions})"]
        if self.claim is not None:
            mine.append(literal(self.claim.run_id))
            asked.append(f"argMaxIf(run_id, (claim_number, written), {self._claims})")
        return (
            f"(SELECT ({', '.join(asked)}) FROM {self.table.qualified} WHERE stream = {literal(self.stream)} "
            f"AND (({self._executions}) OR ({self._claims}))) = ({', '.join(mine)})"
        )

    @property
    def _executions(self) -> str:
        own = self.own
        return f"entry = 'execution' AND topic_id = {literal(own.topic_id)} AND partition = {own.partition}"

    @property
    def _claims(self) -> str:
        return "entry = 'claim' AND fact != ''"

    def holds(self) -> bool:
        """Whether the execution may insert at this moment. Raises ClickHouseError."""
        return bool(self.table.rows(f"SELECT {self.condition} AS holds")[0]["holds"])

    def check(self) -> None:
        self.check_claim()
        if not self.holds():
            raise superseded(self.stream, self.own.partition)

    def check_claim(self) -> None:
        """Raises LedgerConflict if another job has claimed the stream since the task was planned."""
        newest = self.newest_claim()
        if self.claim is not None and (newest is None or newest.run_id != self.claim.run_id):
            raise displaced(self.stream, newest)
