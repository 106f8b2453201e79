"""Fences: only the newest execution of a partition, under the newest claim of its stream, may insert.

The insert itself asks the ledger: ``INSERT … SELECT … FROM input(…) WHERE throwIf(…)``. The rows travel as for a plain
insert, stay one block and one part, and keep their deduplication token (tried on 26.9). ``input()`` knows no column of
the table: it is given the types, and nulls become defaults on the way into the table.

ClickHouse evaluates the question when the statement begins, so a statement that began before a newer execution was
registered may still finish: the newer one kills and awaits those before it looks anything up.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.settings import EVERY_TYPE
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.ports import Claim, Execution, Fence
from ch_sink.stream.claims import displaced, superseded
from ch_sink.table.model import TargetTable
from ch_sink.types.sql import literal, quote

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
        among = [self._executions, self._claims]
        if self.claim is not None and self.own.of_batch:
            # The first executions of a later batch need not be registered.
            mine.append("0")
            asked.append(f"countIf({self._later})")
            among.append(self._later)
        return (
            f"(SELECT ({', '.join(asked)}) FROM {self.table.qualified} WHERE stream = {literal(self.stream)} "
            f"AND (({') OR ('.join(among)}))) = ({', '.join(mine)})"
        )

    @property
    def _executions(self) -> str:
        return f"entry = 'execution' AND {self._place}"

    @property
    def _later(self) -> str:
        own = self.own
        return f"entry = 'intent' AND {self._place} AND claim_number = {own.claim} AND batch > {own.of_batch}"

    @property
    def _place(self) -> str:
        return f"topic_id = {literal(self.own.topic_id)} AND partition = {self.own.partition}"

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
        _expect_newest(self.stream, self.claim, self.newest_claim())


@dataclass(frozen=True, slots=True)
class GroupFence:
    """The Fence of the first executions of several tasks: see `TaskLedger.together`.

    Its inserts have ids that the server draws. A later execution of one of the partitions awaits all such inserts.
    """

    table: StateTable
    """The ledger."""
    stream: str
    topic_id: str
    partitions: Sequence[int]
    claim: Claim | None
    batch: int
    newest_claim: Callable[[], Claim | None] = field(repr=False)
    repeats: bool = False
    query_id: str = ""
    partition_id: str = ""

    @property
    def execution(self) -> str:
        return f"{self._number}-{self.batch}-group"

    @property
    def _number(self) -> int:
        return self.claim.number if self.claim is not None else 0

    @property
    def condition(self) -> str:
        # Batches are numbered by their owner's clock, so only those of one claim are compared.
        repeats = (
            f"entry = 'execution' AND topic_id = {literal(self.topic_id)} "
            f"AND partition IN ({', '.join(map(str, self.partitions))}) AND written >= {self._number << CLAIM_BITS} "
            f"AND counts['batch'] >= {self.batch}"
        )
        if self.claim is None:
            return (
                f"(SELECT count() FROM {self.table.qualified} WHERE stream = {literal(self.stream)} AND {repeats}) = 0"
            )
        claims = "entry = 'claim' AND fact != ''"
        return (
            f"(SELECT (countIf({repeats}), argMaxIf(run_id, (claim_number, written), {claims})) "
            f"FROM {self.table.qualified} WHERE stream = {literal(self.stream)} AND (({repeats}) OR ({claims}))) "
            f"= (0, {literal(self.claim.run_id)})"
        )

    def check(self) -> None:
        _expect_newest(self.stream, self.claim, self.newest_claim())
        if not self.table.rows(f"SELECT {self.condition} AS holds")[0]["holds"]:
            raise superseded(self.stream, min(self.partitions))


def _expect_newest(stream: str, claim: Claim | None, newest: Claim | None) -> None:
    if claim is not None and (newest is None or newest.run_id != claim.run_id):
        raise displaced(stream, newest)


_SUPERSEDED = frozenset({395, 394})
"""FUNCTION_THROW_IF_VALUE_IS_NON_ZERO, QUERY_WAS_CANCELLED: what a superseded insert may end with."""


@contextmanager
def under(fence: Fence | None) -> Iterator[None]:
    """Send a statement of this execution: if the server refuses it because of the fence, LedgerConflict says so."""
    try:
        yield
    except ClickHouseError as error:
        if fence is not None and error.code in _SUPERSEDED:
            fence.check()
        raise


SETTINGS: dict[str, str | int] = {
    # One block: what is read is not cut, and nothing is spread over threads.
    "max_block_size": 1 << 30,
    "max_threads": 1,
    "max_insert_threads": 1,
    # A null in a column that is not Nullable takes the column's default here, too.
    "insert_null_as_default": 1,
    # The answer is that of the ledger, not of a cache.
    "use_query_cache": 0,
    "select_sequential_consistency": 1,
    **EVERY_TYPE,
}


# Sub-queries of a Distributed table have ids of their own, and chDB gives every query its own.
_ID = "if(startsWith(initial_query_id, 'ch_sink/'), initial_query_id, Settings['log_comment'])"
# By its text: an insert that waits for its first rows has no query_kind yet.
_INSERT = "startsWith(upper(trimLeft(query)), 'INSERT')"
_SKIP: dict[str, str | int] = {"skip_unavailable_shards": 1, "connect_timeout_with_failover_ms": 3000}
"""Each server counts as a shard in clusterAllReplicas."""


def await_earlier_inserts(
    client: Client,
    table: TargetTable,
    fence: Fence,
    *,
    cluster: str | None = None,
    patience: float = 120.0,
) -> None:
    """Return once no insert into the partition's rows runs that an earlier execution sent.

    Lookups then see each of them whole or not at all, and later ones are refused by their fence. They are killed, since
    the client of a running one may be frozen in mid-request. Inserts without a fence, and those of groups, have no such
    ids: those that run now are awaited.

    Args:
        fence: the execution that begins now.
        cluster: the cluster on whose servers the inserts may run; by default this server only.

    Raises:
        ClickHouseUnavailable: one of them still runs after ``patience`` seconds, or may run on a server that is alive
            and does not answer.
        ClickHouseError: the server does not show what runs.
    """
    earlier = f"startsWith({_ID}, {literal(fence.partition_id)}) AND NOT startsWith({_ID}, {literal(fence.query_id)})"
    where = _Where(client, table, cluster)
    running, unnamed, silent = where.running(earlier)
    deadline = time.monotonic() + patience
    while running or unnamed or silent:
        if running:  # each time: one that has just begun may outlive a kill, or not show its name yet
            _kill(client, cluster, earlier)
        if time.monotonic() > deadline:
            raise _still_running(table, cluster, running | unnamed, patience)
        time.sleep(0.1)
        running, still, silent = where.running(earlier)
        unnamed &= still


@dataclass(frozen=True, slots=True)
class _Where:
    """The servers on which inserts into one table may run."""

    client: Client
    table: TargetTable
    cluster: str | None

    def running(self, earlier: str) -> tuple[set[str], set[str], bool]:
        """Query ids of the earlier executions' inserts and of those without such ids; whether a server is silent."""
        own = "system.processes"
        processes = f"clusterAllReplicas({literal(self.cluster)}, {own})" if self.cluster else own
        # Of the latter only the table's name and the client's are known.
        other = "position(query, {table:String}) AND position(http_user_agent, 'ch_sink')"
        found = self.client.rows(
            f"SELECT hostName() AS host, tcpPort() AS port, {earlier} AS named, groupArrayIf(query_id, {_INSERT} "
            f"AND (named OR ({other} AND NOT startsWith({_ID}, 'ch_sink/')))) AS ids "
            f"FROM {processes} GROUP BY host, port, named",
            {"table": self.table.qualified},
            settings=_SKIP if self.cluster else None,
            doing="look for inserts of an earlier job that still run",
        )
        named, unnamed = (
            {str(i) for row in found if bool(row["named"]) is wanted for i in row["ids"]} for wanted in (True, False)
        )
        # This query runs on each server that answers, so each has a row.
        answering = len({(row["host"], row["port"]) for row in found})
        return named, unnamed, self.cluster is not None and self._is_silent(self.cluster, answering)

    def _is_silent(self, cluster: str, answering: int) -> bool:
        """Whether a server does not answer that could still store rows.

        A server without a session in the keeper cannot: it is what commits the parts of a replicated table. One that
        has a session and is cut off from here may run an insert whose fence it has checked before. So a server counts
        as dead once the keeper says so, which takes it a session's time, 30 seconds by default.
        """
        [known] = self.client.rows(
            "SELECT count() AS n FROM system.clusters WHERE cluster = {cluster:String}",
            {"cluster": cluster},
            doing=f"count the servers of cluster {cluster}",
        )
        if answering >= int(known["n"]):
            return False
        table = self.table
        database, name = table.local or (table.database, table.name)
        if not table.engine.replicated:
            # Other servers hold no rows of a plain table, but those of a Distributed one.
            return table.distributed or table.engine.shared
        seen = self.client.rows(
            "SELECT zookeeper_path, count() AS answering, max(active_replicas) AS active, max(total_replicas) AS total "
            f"FROM clusterAllReplicas({literal(cluster)}, system.replicas) "
            "WHERE database = {database:String} AND table = {name:String} GROUP BY zookeeper_path",
            {"database": database, "name": name},
            settings=_SKIP,
            doing=f"ask which replicas of {table.qualified} are alive",
        )
        whole = sum(int(row["total"]) for row in seen) >= int(known["n"])
        return not whole or any(int(row["answering"]) < int(row["active"]) for row in seen)


def _still_running(table: TargetTable, cluster: str | None, ids: set[str], patience: float) -> ClickHouseUnavailable:
    if ids:
        return ClickHouseUnavailable(
            f"an insert of an earlier job into {table.qualified} still runs after {patience:.0f} s (query {min(ids)})",
            hint="Find it in system.processes and stop it with KILL QUERY; the stream then continues.",
        )
    return ClickHouseUnavailable(
        f"a server of cluster {cluster} has not answered for {patience:.0f} s, and an insert of an earlier job into "
        f"{table.qualified} may still run there",
        hint="Start it, or remove it from the cluster's configuration; the stream then continues.",
    )


def _kill(client: Client, cluster: str | None, where: str) -> None:
    """Stop inserts. A user may stop its own queries; one that may not waits for their end."""
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    try:
        client.command(
            f"KILL QUERY{on_cluster} WHERE {where} ASYNC",
            # Whether it has worked is looked at next; a server that is down would be given 180 seconds.
            settings={"distributed_ddl_task_timeout": 0},
            doing="stop inserts of an earlier job",
        )
    except ClickHouseUnavailable:
        raise
    except ClickHouseError:
        return
