"""Source tables whose columns change in mid-stream: the target follows, and equals its source."""

import random
from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.decode import RowSchema, sample_schema
from ch_sink.policy import Policy
from ch_sink.table.model import TargetTable
from tests.integration.test_recorded import equal
from tests.support.endpoint import clickhouse, client, database
from tests.support.fixtures import as_records, topic_of, topics
from tests.support.stream import Feed, make_table

__all__ = ["clickhouse", "client", "database"]

pytestmark = pytest.mark.integration
POLICY = Policy(evolve="add_columns", on_bad_record="fail")
SOURCES = ("mariadb", "postgres")


def at_the_snapshot(stream: str, table: str) -> RowSchema:
    """What ``init`` found when there was nothing but the snapshot."""
    first = topics(stream)[topic_of(stream, table)][0]
    found = sample_schema(as_records([first]))
    assert found is not None
    return found


def feed_of(client: Client, database: str, stream: str, table: str, engine: str = "replacing") -> Feed:
    target: TargetTable = make_table(
        client, database, table, at_the_snapshot(stream, table), engine=engine, policy=POLICY
    )
    return Feed(client, database, target, stream, topic_of(stream, table), POLICY)


@pytest.mark.parametrize("engine", ["replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append"])
@pytest.mark.parametrize("source", SOURCES)
def test_columns_added_and_dropped_in_mid_stream(client: Client, database: str, source: str, engine: str) -> None:
    stream = f"{source}-json_schema"
    feed = feed_of(client, database, stream, "ac", engine)
    feed.run()
    assert {name for names in feed.evolved for name in names} == {"extra", "d2"}
    types = {c.name: (c.type, c.default_expression, c.comment) for c in feed.target.table.columns}
    assert types["extra"] == ("Int32", "7", 'debezium: int32 {"optional":false}')
    assert types["d2"][:2] == ("Nullable(Decimal(10, 2))", "")
    assert equal(client, database, source, stream, "ac") == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("source", SOURCES)
def test_any_cut_order_of_partitions_and_second_attempt(client: Client, database: str, source: str, seed: int) -> None:
    stream, rng = f"{source}-json_schema", random.Random(seed)
    feed = feed_of(client, database, stream, "ac")
    feed.run(rng, longest=3)
    again = Feed(client, database, replace(feed.target.table), stream, feed.topic, POLICY)
    again.run(rng, longest=5)
    assert again.evolved == []
    assert equal(client, database, source, stream, "ac") == []


@pytest.mark.parametrize("source", SOURCES)
def test_plain_json_tells_what_its_values_tell(client: Client, database: str, source: str) -> None:
    feed = feed_of(client, database, f"{source}-json_plain", "ac")
    feed.run(random.Random(1), longest=2)
    types = {c.name: c.type for c in feed.target.table.columns}
    assert (types["extra"], types["d2"]) == ("Nullable(Int64)", "Nullable(String)")
    rows = client.rows(f"SELECT id, k, extra, d2 FROM {database}.ac_current ORDER BY k")
    assert [tuple(r.values()) for r in rows] == [
        (1, 1, 7, None),
        (1, 2, None, None),  # the source says 7, its default, which plain JSON does not tell
        (1, 4, 9, "fQ=="),
    ]
