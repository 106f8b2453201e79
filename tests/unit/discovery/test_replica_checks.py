"""Which servers behind one URL are refused, and why."""

from dataclasses import replace

import pytest

from ch_sink.discovery.servers import Servers, replica_findings
from ch_sink.table.model import Engine, Family, TargetTable

PLAIN = TargetTable("d", "t", Engine(Family.REPLACING, "ReplacingMergeTree", "v"), ())
REPLICATED = replace(PLAIN, engine=Engine(Family.REPLACING, "ReplicatedReplacingMergeTree", "v", replicated=True))
SHARED = replace(PLAIN, engine=Engine(Family.REPLACING, "SharedReplacingMergeTree", "v", shared=True))
DISTRIBUTED = replace(REPLICATED, distributed=True)
ONE = Servers(("a",), "sink", None)
TWO = Servers(("a", "b"), "sink", "c")
PAIR = replace(ONE, cluster="c", replicas=2)


@pytest.mark.parametrize(
    ("table", "servers", "level", "part"),
    [
        (PLAIN, ONE, None, ""),
        (PLAIN, TWO, "fail", "is not replicated: each would hold some of the rows"),
        (SHARED, TWO, None, ""),
        (REPLICATED, ONE, "ok", "a: a replica is brought up to date before reads"),
        (REPLICATED, TWO, "ok", "a, b: a replica is brought up to date before reads"),
        (REPLICATED, replace(TWO, quorum=True, may_sync=False), "ok", "insert_quorum"),
        (REPLICATED, replace(TWO, may_sync=False), "fail", "may not run SYSTEM SYNC REPLICA"),
        (REPLICATED, replace(ONE, may_sync=False), "fail", "may not run SYSTEM SYNC REPLICA"),
        (REPLICATED, replace(TWO, cluster=None), "fail", "without clickhouse.cluster"),
        (REPLICATED, replace(TWO, plain_state_tables=("ledger",)), "fail", "own tables ledger are not replicated"),
        (REPLICATED, replace(ONE, plain_state_tables=("ledger",)), "ok", "a: "),
        (
            REPLICATED,
            replace(ONE, plain_state_tables=("ledger",), replicas=2, cluster="c"),
            "fail",
            "after a fail-over",
        ),
        (REPLICATED, replace(PAIR, cluster=None), "warn", "clickhouse.cluster is not set"),
        (REPLICATED, PAIR, "ok", "a: "),
        (DISTRIBUTED, TWO, "fail", "Distributed over replicated tables"),
        (DISTRIBUTED, replace(TWO, quorum=True), "fail", "the server may lose inserts under the quorum"),
    ],
)
def test_findings(table: TargetTable, servers: Servers, level: str | None, part: str) -> None:
    found = list(replica_findings(table, servers))
    assert [f.level for f in found] == ([level] if level else [])
    assert all(part in f.detail for f in found)
    assert all(f.remedy for f in found if f.level == "fail")
