"""Recorded streams of real connectors into real servers: the table equals the source's final rows, on every engine."""

import random

import pytest

from ch_sink.clickhouse import Client
from tests.support.busy import ENGINES, feed_of
from tests.support.fixtures import topic_of
from tests.support.kills import Kill
from tests.support.recorded import CASES, POLICY, equal
from tests.support.stream import Feed, make_table, schema_of, typed_stream


@pytest.mark.parametrize(("stream", "table"), CASES)
def test_the_table_equals_the_source(client: Client, database: str, stream: str, table: str) -> None:
    target = make_table(client, database, table, schema_of(typed_stream(stream, table), table), policy=POLICY)
    feed = None
    for seed in range(2):  # the second time as a second attempt over what is stored
        feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY, again=feed)
        feed.run(random.Random(f"{stream}/{table}/{seed}"), longest=20)
        assert equal(client, database, stream.split("-")[0], stream, table) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("table", ["acct", "hot"])
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_busy_stream_in_slices_with_kills(
    client: Client, database: str, source: str, table: str, engine: str
) -> None:
    feed = feed_of(client, database, source, table, engine, partition_by="k % 3" if table == "acct" else "")
    rng = random.Random(f"{source}{table}{engine}")
    for _ in range(5):
        partition = rng.choice([p for p in feed.at if feed.at[p] < feed.ends[p]])
        end = min(feed.ends[partition], feed.at[partition] + feed.ends[partition] // 8)
        feed.chunk(partition, end, Kill("before insert", rng.randint(1, 3)))
    feed.run(rng, longest=max(feed.ends.values()) // 6)
    assert equal(client, database, f"{source}-busy", source, table) == []
    client.command(f"OPTIMIZE TABLE {feed.target.table.qualified} FINAL")
    assert equal(client, database, f"{source}-busy", source, table) == []
    assert feed.letters == 0
