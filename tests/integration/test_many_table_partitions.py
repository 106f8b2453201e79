"""Chunks that touch many table partitions: one block, which the server splits, or a block for each."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ch_sink.clickhouse import ClickHouseWriter, Client, detect
from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from tests.support.hand import COLLAPSING, ENGINES, OWN, WINDOW, Event, delete, insert, row, update
from tests.support.hand_commands import each_of, hand, records

pytestmark = pytest.mark.integration


def create(client: Client, database: str, engine: str) -> None:
    """A table with a partition for each id."""
    clause, own = OWN[engine]
    columns = f"id Int64, v Nullable(String), {own}"
    client.command(f"CREATE TABLE {database}.t ({columns}) ENGINE = {clause} PARTITION BY id ORDER BY id {WINDOW}")


def planned(client: Client, database: str, engine: str, events: Sequence[Event]) -> tuple[Plan, ClickHouseWriter]:
    """The plan of a chunk into such a table."""
    create(client, database, engine)
    table = detect(client, database, "t", chosen := policy_of())
    target, decoder = Target.of(table, chosen), Decoder(table, chosen)
    found = records(0, events)
    return plan(found, target, decoder, State(profile=decoder.learn(found)), Ports(None, None)), ClickHouseWriter(
        client, table
    )


def rows_of(client: Client, database: str) -> list[tuple[int, str]]:
    found = client.rows(f"SELECT id, v FROM {database}.t FINAL ORDER BY id")
    return [(int(r["id"]), r["v"]) for r in found]


@each_of("engine", ENGINES, "replacing", "collapsing", "versioned")
def test_a_block_of_many_partitions_is_one_insert_that_is_stored_once(
    client: Client, database: str, engine: str
) -> None:
    made, writer = planned(client, database, engine, [insert(n, "a", n) for n in range(1, 10)])
    assert [i.label.rpartition("/")[2] for i in made.inserts] == ["*"]
    for _ in range(3):
        writer.write(made.inserts[0], "token")
    stored = client.rows(f"SELECT count() AS n, uniqExact(_partition_id) AS p FROM {database}.t")
    assert {name: int(n) for name, n in stored[0].items()} == {"n": 9, "p": 9}


@each_of("engine", ENGINES, "collapsing")
def test_what_a_broken_insert_left_out_is_stored_by_the_next_attempt(
    client: Client, database: str, engine: str
) -> None:
    """The server had stored some of the partitions: the same block under the same token adds the others."""
    made, writer = planned(client, database, engine, [insert(n, "a", n) for n in range(1, 10)])
    [whole] = made.inserts
    writer.write(replace(whole, rows=whole.rows.slice(2, 3)), "token")
    writer.write(whole, "token")
    assert rows_of(client, database) == [(n, "a") for n in range(1, 10)]
    stored = client.rows(f"SELECT count() AS n FROM {database}.t")
    assert int(stored[0]["n"]) == 9


@each_of("engine", ENGINES, "versioned")
def test_few_partitions_have_an_insert_each(client: Client, database: str, engine: str) -> None:
    made, writer = planned(client, database, engine, [insert(n, "a", n) for n in (3, 1, 2)])
    assert sorted(i.label.rpartition("/")[2] for i in made.inserts) == ["1", "2", "3"]
    for at, one in enumerate(made.inserts):
        writer.write(one, f"token {at}")
    assert rows_of(client, database) == [(1, "a"), (2, "a"), (3, "a")]


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "collapsing", "versioned")
def test_rows_leave_before_their_successors_come_in_each_partition(client: Client, database: str, engine: str) -> None:
    ids = range(1, 10)
    then = [update(row(n, "a"), row(n, "b"), 100 + n) for n in ids if n % 3]
    then += [delete(row(n, "a"), 200 + n) for n in ids if not n % 3]
    it = hand(client, database, engine, [*[insert(n, "a", n) for n in ids], *then])
    client.command(f"DROP TABLE {database}.t SYNC")
    create(client, database, engine)
    it.read((0, 9), (0, 18))
    assert it.view() == [(n, "b") for n in ids if n % 3]
    if engine in COLLAPSING:
        [signs] = client.rows(f"SELECT sum(_sign) AS s FROM {database}.t")
        assert int(signs["s"]) == 6
    assert it.verify() == (0, 0, 0)
