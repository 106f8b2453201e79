"""The busy streams: overlapping transactions, re-delivered stretches, key changes with placeholders over partitions."""

import random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import Policy
from tests.integration.test_recorded import equal
from tests.support.endpoint import clickhouse, client, database
from tests.support.fixtures import topic_of
from tests.support.stream import Feed, Killed, make_table, schema_of

__all__ = ["clickhouse", "client", "database"]

POLICY = Policy(on_bad_record="fail")
ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing")


def feed_of(client: Client, database: str, source: str, table: str, engine: str, **spec: object) -> Feed:
    stream = f"{source}-busy-json_plain"
    schema = schema_of(stream, table, keep=decimal_and_time(table))
    target = make_table(client, database, table, schema, engine=engine, policy=POLICY, **spec)
    return Feed(client, database, target, stream, topic_of(stream, table), POLICY)


def decimal_and_time(table: str) -> dict[str, tuple[str, str, dict[str, str]]]:
    """Plain JSON carries no types: what the source's columns are, as Debezium's schema would tell."""
    if table != "acct":
        return {}
    price = {"scale": "4", "connect.decimal.precision": "20"}
    return {
        "price": ("bytes", "org.apache.kafka.connect.data.Decimal", price),
        "updated": ("int64", "io.debezium.time.MicroTimestamp", {}),
    }


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("table", ["acct", "hot"])
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
class TestBusy:
    def test_in_one_run(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine)
        feed.run()
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0

    def test_in_fifty_slices(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine)
        rng = random.Random(f"{source}{table}{engine}")
        feed.run(rng, longest=max(feed.ends.values()) // 10)
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0

    def test_killed_at_ten_moments(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine, partition_by="k % 3" if table == "acct" else "")
        rng = random.Random(f"kill {source}{table}{engine}")
        for _ in range(10):
            left = [p for p in feed.at if feed.at[p] < feed.ends[p]]
            if not left:
                break
            partition = rng.choice(left)
            end = min(feed.ends[partition], feed.at[partition] + rng.randint(1, max(2, feed.ends[partition] // 12)))
            feed.kill_after = rng.randint(0, 3)
            try:
                feed.chunk(partition, end)
            except Killed:
                feed.restart()
                feed.chunk(partition, end)  # a second attempt is cut alike
            feed.kill_after = None
        feed.run(rng, longest=400)
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0
