"""The last versions of a stream, above which a repair writes nothing."""

from types import SimpleNamespace

import pytest

from ch_sink.memory import MemoryLedger
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.order.state import SourceState
from ch_sink.pipeline.target import Target
from ch_sink.ports import TopicFacts
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.trust.repair_sql import last_versions
from ch_sink.trust.subject import states_at
from ch_sink.types.column import Column
from tests.support.document_run import document_table

OWN = (20 << 32) | 2 * 4 + 1
"""The version of a change of position 20 at offset 4."""
LOWEST = 2 * 4 + 1
"""The same of a database that has sent nothing yet: every position is above it."""


@pytest.mark.parametrize(
    ("topic", "names", "lowest"),
    [
        ("srv.db1.dbo.t", ["srv/db1"], OWN),
        ("srv.db1.dbo.t", ["srv/db1", "srv/db2"], LOWEST),
        ("all", ["srv/db1"], LOWEST),
        ("srv.db1", ["srv/db1"], LOWEST),
        ("srv.db10.dbo.t", ["srv/db1"], LOWEST),
        ("all", ["srv"], OWN),
    ],
)
def test_a_database_that_has_sent_nothing_counts_unless_the_topic_is_that_of_one(
    topic: str, names: list[str], lowest: int
) -> None:
    table = document_table((Column("id", "Int64"),), "replacing", "id")
    state = State(sources={name: SourceState(commit=20) for name in names}, strategy="source_position")
    assert last_versions(Target.of(table, policy_of()), topic, {0: (5, state)}) == (lowest, OWN)


def test_a_partition_of_which_nothing_was_read_begins_in_the_epoch_of_its_topic() -> None:
    """Below it are the rows of another writer, which a repair replaces."""
    ledger = MemoryLedger("s")
    ledger.claim("run")
    ledger.record(TopicFacts("id", 2, 25))
    states = states_at(SimpleNamespace(ledger=ledger), "id", {0: 0})  # type: ignore[arg-type]
    columns = (Column("id", "Int64"), Column("v", "UInt64"), Column("d", "UInt8"))
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", version_column="v", is_deleted_column="d")
    table = TargetTable("d", "t", engine, columns, ("id",))
    below = (25 << 56) - 1
    assert last_versions(Target.of(table, policy_of()), "t", states) == (below, below)
