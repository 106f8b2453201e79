"""Drawn histories of source tables whose columns change, into the real engine, with cuts, kills and second attempts."""

import random
from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.types.sql import quote
from tests.support.choose import each_value, some
from tests.support.evolving import EvolvingSource
from tests.support.kills import Kill
from tests.support.stream import Feed, make_table

pytestmark = [pytest.mark.integration, pytest.mark.slow]
POLICY = policy_of(evolve="add_columns", on_bad_record="fail")
KILLED = ("before insert", "after insert", "before alter", "after alter", "before results", "after record")
ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")


def source_of(seed: int, schemas: bool) -> EvolvingSource:
    source = EvolvingSource(schemas=schemas)
    source.write(1, v="first")
    source.live(random.Random(seed), 60)
    source.write(100)  # the last schema is told
    return source


def feed_of(client: Client, database: str, source: EvolvingSource, engine: str) -> Feed:
    """Into a table with the columns of the beginning only."""
    target = make_table(client, database, "t", source.declared(), engine=engine, policy=POLICY)
    return Feed(client, database, target, f"{engine}/{database}", "evolving", POLICY, source.records())


def found(client: Client, database: str, source: EvolvingSource) -> list[tuple[object, ...]]:
    there = {
        c["name"] for c in client.rows("SELECT name FROM system.columns WHERE database = {d:String}", {"d": database})
    }
    names = [quote(n) if n in there else f"NULL AS {quote(n)}" for n in source.columns]  # was null all the time
    rows = client.rows(f"SELECT {', '.join(names)} FROM {database}.t_current ORDER BY id")
    return [tuple(row.values()) for row in rows]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "seed", "schemas"), each_value(ENGINES, range(2), (True, False)))
def test_the_table_equals_its_source(client: Client, database: str, engine: str, seed: int, schemas: bool) -> None:
    source = source_of(seed, schemas)
    feed = feed_of(client, database, source, engine)
    feed.run(random.Random(seed), longest=9)
    assert feed.evolved
    assert found(client, database, source) == source.truth()


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "seed"), some(product(ENGINES, range(10, 12)), [("replacing", 10), ("versioned-collapsing", 11)])
)
def test_kills_between_the_inserts_change_nothing(client: Client, database: str, engine: str, seed: int) -> None:
    rng = random.Random(seed)
    source = source_of(seed, True)
    feed = feed_of(client, database, source, engine)
    while left := [p for p in feed.records if feed.at[p] < feed.ends[p]]:
        partition = rng.choice(left)
        end = min(feed.ends[partition], feed.at[partition] + rng.randint(1, 9))
        kills = [Kill(rng.choice(KILLED), rng.randint(1, 2)) for _ in range(3) if rng.random() < 0.3]
        feed.chunk(partition, end, *kills)
    assert found(client, database, source) == source.truth()
    if engine == "append":
        changes = sum(len(r) for r in feed.records.values())
        assert client.rows(f"SELECT count() AS n FROM {database}.t") == [{"n": changes}]
