"""A stream into a ``Distributed`` table over a cluster of one node, this engine itself.

Several shards and Replicated tables are beyond the embedded engine: it listens on no port, so that no other shard is
reached, and a replica without an interserver address, which only the server program sets, stays read-only (error 242)
even where there is a ZooKeeper.
"""

import random

import pytest

from ch_sink.clickhouse import ClickHouseTableAdmin, Client, detect
from ch_sink.errors import ClickHouseError
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Family
from tests.support.busy import decimal_and_time
from tests.support.choose import some
from tests.support.fixtures import topic_of
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    OWN,
    PLACEHOLDER,
    HandFed,
    delete,
    each_engine,
    insert,
    key,
    postgres,
    row,
    signs,
    update,
)
from tests.support.kills import Kill
from tests.support.recorded import equal
from tests.support.stream import Feed, make_table, schema_of

pytestmark = pytest.mark.integration


def distributed(node: Client, database: str, engine: str) -> HandFed:
    clause, own = OWN[engine]
    columns = f"id Int64, v Nullable(String), p Int32, {own}"
    node.command(
        f"CREATE TABLE {database}.local ({columns}) ENGINE = {clause} PARTITION BY p ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    ddl = f"({columns}) ENGINE = Distributed(one, {database}, local, id)"
    return HandFed(node, database, "own_tables", ddl, ("id",))


@pytest.mark.sampled(1)
@each_engine
def test_changes_go_through_the_distributed_table(node: Client, over: str, engine: str) -> None:
    """Moves between partitions, deletes, a value that is looked up, and a second attempt at all of it."""
    fed = distributed(node, over, engine)
    assert fed.table.distributed
    assert fed.table.engine.family in (Family.REPLACING, Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
    fed.feed([insert(i, "a", 100 + i, p=i % 2) for i in range(6)])
    before = fed.states[0]
    changes = [
        update(row(0, "a", p=0), row(0, "moved", p=1), 200),
        delete(row(1, "a", p=1), 210),
        postgres("u", key(2), None, row(2, PLACEHOLDER, p=0), 10**15, 10**15),
    ]
    fed.feed(changes)
    want = [(0, "moved", 1), (2, "a", 0), (3, "a", 1), (4, "a", 0), (5, "a", 1)]
    assert fed.view() == want
    fed.again(0, 6, 9, before)
    assert fed.view() == want
    if engine in COLLAPSING:
        assert {total for _, total in signs(fed)} <= {0, 1}
        assert sum(total for _, total in signs(fed)) == len(want)


def test_a_column_is_added_by_hand_where_the_cluster_has_no_keeper(node: Client, over: str) -> None:
    fed = distributed(node, over, "replacing")
    admin = ClickHouseTableAdmin(node, over, fed.table.name, fed.policy)
    with pytest.raises(ClickHouseError) as refused:
        admin.carry_out(fed.table, [UnknownColumn("w", 0, "Nullable(String)")], ("id",))
    assert "run the statement on each server without ON CLUSTER" in (refused.value.hint or "")
    assert "ADD COLUMN IF NOT EXISTS `w` Nullable(String)" in (refused.value.hint or "")


@pytest.mark.sampled(2)
@each_engine
def test_tokens_hold_through_the_distributed_table(node: Client, over: str, engine: str) -> None:
    """The same attempt once more, as after an answer that was lost: the blocks are dropped by their tokens."""
    fed = distributed(node, over, engine)
    node.command(f"SYSTEM STOP MERGES {over}.local")
    fed.feed([insert(i, "a", 100 + i, p=0) for i in range(6)])
    parts = f"SELECT count() FROM system.parts WHERE active AND database = '{over}' AND table = 'local'"
    assert fed.query(parts) == [(1,)]
    fed.sinks.clear()
    fed.states.clear()
    fed.apply(0, 0, 6)
    assert fed.query(parts) == [(1,)]
    assert fed.query("SELECT count() FROM {t}") == [(6,)]


def test_an_update_of_a_row_that_stays_in_its_place_outlives_any_merge(node: Client, over: str) -> None:
    """A row may change its server here, and this one does not."""
    columns = "id Int64, v Nullable(String), p Int32, tenant Int32, _sign Int8, _version UInt128"
    node.command(
        f"CREATE TABLE {over}.local ({columns}) ENGINE = CollapsingMergeTree(_sign) PARTITION BY intDiv(p, 10) "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    fed = HandFed(node, over, "own_tables", f"({columns}) ENGINE = Distributed(one, {over}, local, tenant)", ("id",))
    fed.feed([insert(1, "a", 100, p=1, tenant=7)])
    node.command(
        f"INSERT INTO {over}.local (id, v, p, tenant, _sign, _version) "
        "SELECT number + 10, 'x', 1, 7, 1, 1 FROM numbers(300000)"
    )
    node.command(f"OPTIMIZE TABLE {over}.local FINAL")
    fed.feed([update(row(1, "a", p=1, tenant=7), row(1, "b", p=2, tenant=7), 200)])
    node.command(f"OPTIMIZE TABLE {over}.local")
    assert fed.query("SELECT v, p FROM {t}_current WHERE id = 1") == [("b", 2)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("engine", some(((engine,) for engine in ENGINES), [("collapsing",)]))
def test_a_busy_stream_with_kills_through_a_distributed_table(node: Client, over: str, engine: str) -> None:
    stream, table, policy = "postgres-busy-json_plain", "hot", policy_of(on_bad_record="fail")
    choice = {"sign": "sign-replacing", "versioned": "versioned-collapsing"}.get(engine, engine)
    schema = schema_of(stream, table, keep=decimal_and_time(table))
    make_table(node, over, table, schema, engine=choice, policy=policy)
    node.command(f"RENAME TABLE {over}.{table} TO {over}.local")
    node.command(f"CREATE TABLE {over}.{table} AS {over}.local ENGINE = Distributed(one, {over}, local, id)")
    target = detect(node, over, table, policy)
    assert target.distributed
    feed = Feed(node, over, target, stream, topic_of(stream, table), policy)
    rng = random.Random(f"distributed {engine}")
    for _ in range(5):
        partition = rng.choice(sorted(feed.at))
        end = min(feed.ends[partition], feed.at[partition] + rng.randint(50, 400))
        feed.chunk(partition, end, Kill("before insert", rng.randint(1, 3)))
    feed.run(rng, longest=600)
    assert equal(node, over, "postgres-busy", "postgres", table) == []
    assert feed.letters == 0
