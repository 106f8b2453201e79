"""The last versions of a stream, above which a repair writes nothing."""

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.order.state import SourceState
from ch_sink.pipeline.target import Target
from ch_sink.trust.repair_sql import last_versions
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
