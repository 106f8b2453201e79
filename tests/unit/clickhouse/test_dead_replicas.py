"""One replica is down, or cut off: what goes on without it, and what must not."""

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import await_earlier_inserts, execute
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.clickhouse.table_admin import ClickHouseTableAdmin
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.servers import Request, Rows, Servers

TABLE = TargetTable(
    "d",
    "t",
    Engine(
        Family.REPLACING,
        "ReplicatedReplacingMergeTree",
        "_version",
        is_deleted_column="_is_deleted",
        replicated=True,
    ),
    (Column("id", "UInt64"), Column("_version", "UInt128"), Column("_is_deleted", "UInt8")),
    sorting_key=("id",),
)


class Fence:
    """What is asked of a fence here."""

    partition_id, query_id = "ch_sink/s/t/0/", "ch_sink/s/t/0/2-1-x/"


class Cluster:
    """Two servers of a cluster and what the keeper says of them."""

    def __init__(self, *, answering: int = 2, active: int = 2, total: int = 2, servers: int = 2, runs: int = 0) -> None:
        self.answering, self.active, self.total, self.runs = answering, active, total, runs
        self.known = servers
        self.killed = 0
        self.servers = Servers("a", self._answer)

    def _answer(self, request: Request) -> Rows | None:
        sql = request.sql
        if sql.startswith("KILL QUERY"):
            self.runs, self.killed = 0, self.killed + 1
            assert request.settings["distributed_ddl_task_timeout"] == 0
        elif "system.clusters" in sql:
            return [{"n": self.known}]
        elif "system.replicas" in sql:
            return [{"zookeeper_path": "/t", "answering": self.answering, "active": self.active, "total": self.total}]
        elif "system.processes" in sql:
            assert request.settings["skip_unavailable_shards"] == 1
            return [
                {"host": f"host {n}", "port": 9000, "named": named, "ids": [f"q{i}" for i in range(self.runs * named)]}
                for n in range(self.answering)
                for named in (0, 1)[: 1 + bool(self.runs)]
            ]
        return None

    def settle(self, table: TargetTable = TABLE, patience: float = -1) -> None:
        fence: Any = Fence()
        await_earlier_inserts(self.servers.client(), table, fence, cluster="pair", patience=patience)


@pytest.mark.parametrize(
    ("cluster", "waits"),
    [
        (Cluster(), False),
        (Cluster(answering=1, active=1), False),
        (Cluster(answering=1, active=2), True),
        (Cluster(answering=1, active=1, total=3, servers=3), False),
        (Cluster(answering=1, active=0, total=0), True),
        (Cluster(answering=2, active=2, servers=4), True),
    ],
    ids=[
        "all answer",
        "the keeper knows that it is dead",
        "it is alive and cut off",
        "one of three is left",
        "the keeper does not answer",
        "no server of a shard answers",
    ],
)
def test_earlier_inserts_are_looked_for_without_servers_that_cannot_store_any(cluster: Cluster, waits: bool) -> None:
    if not waits:
        cluster.settle()
        return
    with pytest.raises(ClickHouseUnavailable, match="a server of cluster pair has not answered"):
        cluster.settle()


def test_a_server_is_waited_for_until_the_keeper_says_that_it_is_dead() -> None:
    cluster = Cluster(answering=1, active=2)
    answer, asked = cluster._answer, list[str]()

    def later(request: Request) -> Rows | None:
        asked.append(request.sql)
        if len(asked) > 8:
            cluster.active = 1
        return answer(request)

    cluster.servers._answer = later
    cluster.settle(patience=30)
    assert len(asked) > 8


def test_a_plain_table_has_no_rows_on_a_server_that_does_not_answer() -> None:
    plain = replace(TABLE, engine=replace(TABLE.engine, replicated=False))
    Cluster(answering=1).settle(plain)


@pytest.mark.parametrize(("replicated", "waits"), [(True, False), (False, True)])
def test_a_distributed_table_goes_on_if_the_keeper_knows_its_tables(replicated: bool, waits: bool) -> None:
    cluster = Cluster(answering=1, active=1)
    engine = replace(TABLE.engine, replicated=replicated)
    table = replace(TABLE, engine=engine, distributed=True, local=("d", "t_local"))
    if not waits:
        cluster.settle(table)
        return
    with pytest.raises(ClickHouseUnavailable):
        cluster.settle(table)


def test_inserts_that_still_run_are_stopped_without_waiting_for_a_dead_server() -> None:
    cluster = Cluster(answering=1, active=1, runs=1)
    cluster.settle(patience=5)
    assert cluster.killed == 1


@pytest.mark.parametrize(
    ("statement", "code"), [("ALTER TABLE d.t ADD COLUMN a", 341), ("ALTER TABLE d.t ON CLUSTER c ADD COLUMN a", 159)]
)
def test_a_statement_that_a_dead_replica_lacks_is_reported_and_gone_on_with(
    statement: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: Request) -> Rows | None:
        if request.sql == statement:
            raise ClickHouseError("replica two is inactive", code=code)
        return None

    servers = Servers("a", answer)
    with caplog.at_level(logging.WARNING, "ch_sink"):
        execute(servers.client(), [statement, "SELECT 2"])
    run = [one.sql for one in servers.requests if "system.mutations" not in one.sql]  # none fails
    assert run == [statement, "SELECT 2"]
    assert "replica two is inactive" in caplog.text
    assert servers.requests[0].settings["replication_wait_for_inactive_replica_timeout"] <= 10
    assert servers.requests[0].settings["distributed_ddl_task_timeout"] <= 60


@pytest.mark.parametrize(("statement", "code"), [("ALTER TABLE d.t ADD COLUMN a", 159), ("ALTER TABLE d.t", 60)])
def test_other_failures_of_a_statement_are_raised(statement: str, code: int) -> None:
    def answer(_: Request) -> Rows | None:
        raise ClickHouseError("no", code=code)

    with pytest.raises(ClickHouseError):
        execute(Servers("a", answer).client(), [statement])


def test_a_truncate_marks_the_rows_that_a_replica_with_all_parts_has() -> None:
    done: list[str] = []

    def answer(request: Request) -> Rows | None:
        if request.sql.startswith("INSERT"):
            if not request.allowed:
                raise ClickHouseError("guarded", code=395)
            done.append(request.server)
        return None

    servers = Servers("ab", answer)
    client = servers.client()
    ClickHouseTableAdmin(client, "d", "t", policy_of()).truncate(TABLE, 5, "_version", list)
    synced = {one.server for one in servers.requests if one.sql.startswith("SYSTEM SYNC REPLICA")}
    assert len(done) == 1
    assert done[0] in synced


class Quorum:
    """Replicas of the ledger, of which one has just died: the keeper counts it for a while."""

    def __init__(self, counts: list[int], code: int = 319) -> None:
        self.counts, self.code, self.alive = counts, code, 1
        self.asked: list[int] = []
        self.servers = Servers("a", self._answer)

    def _answer(self, request: Request) -> Rows | None:
        if "active_replicas" in request.sql:
            self.asked.append(self.counts.pop(0) if len(self.counts) > 1 else self.counts[0])
            return [{"n": self.asked[-1]}]
        if request.sql.startswith("INSERT"):
            assert self.asked[-1] == 1 or "insert_quorum_timeout = 5000" in request.sql
            if self.asked[-1] > self.alive:
                raise ClickHouseUnavailable("unknown quorum status", code=self.code)
        return None

    def insert(self) -> None:
        table = StateTable(self.servers.client(), "d", "ledger")
        table.insert(pa.table({"id": [1]}), everywhere=True)


@pytest.mark.parametrize("code", [285, 319])
def test_a_claim_is_written_to_the_replicas_that_answer(code: int) -> None:
    quorum = Quorum([2, 2, 2, 1], code)
    quorum.insert()
    assert quorum.asked == [2, 2, 2, 1]


@pytest.mark.parametrize(("code", "tries"), [(319, 24), (210, 2)])
def test_a_claim_that_cannot_be_written_everywhere_is_no_claim(code: int, tries: int) -> None:
    quorum = Quorum([2], code)
    with pytest.raises(ClickHouseUnavailable):
        quorum.insert()
    assert len(quorum.asked) == tries


def test_an_added_column_does_not_wait_for_a_host_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's statement runs into its time limit; the table has the column."""
    wide = replace(TABLE, columns=(*TABLE.columns, Column("more", "Nullable(String)")))

    def answer(request: Request) -> Rows | None:
        if request.sql.startswith("ALTER"):
            raise ClickHouseUnavailable("not finished on 1 of 2 hosts", code=159)
        return []

    servers = Servers("a", answer)
    monkeypatch.setattr("ch_sink.clickhouse.table_admin.detect", lambda *_: wide if servers.requests else TABLE)
    evolution = ClickHouseTableAdmin(servers.client(), "d", "t", policy_of(), "pair")
    assert evolution.carry_out(TABLE, [UnknownColumn("more", 0, "Nullable(String)")], ("id",)) is wide
    assert len([one for one in servers.requests if one.sql.startswith("ALTER")]) == 1
