"""Recorded streams, flattened, into the real engine: the table that ``init`` makes of them equals the source."""

import random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.types.connect import RowSchema
from tests.support.choose import some
from tests.support.decoding import table_of
from tests.support.fixtures import Recorded, as_records, read_truth, topic_of, topics
from tests.support.recorded import KEYLESS, equal
from tests.support.smt import POSITION, route, transformation
from tests.support.stream import Feed, make_table

POLICY = policy_of(on_bad_record="fail")
STREAMS = [f"{db}-{kind}" for db in POSITION for kind in ("json_schema", "json_schema-kc", "json_schema-wide")]
UNTOLD = {"tr", "ac", *KEYLESS}
"""Truncates are dropped by the transformation; the others have columns that change, or no key."""


def tables(stream: str) -> list[str]:
    known = read_truth(stream.split("-")[0])
    return sorted(n for t in topics(stream) if (n := t.rpartition(".")[2]) in known and n not in UNTOLD)


CASES = [(stream, table, mode) for stream in STREAMS for table in tables(stream) for mode in ("tombstone", "rewrite")]


def by_partition(recorded: list[Recorded]) -> dict[int, Records]:
    numbers = sorted({r.partition for r in recorded})
    return {p: as_records([r for r in recorded if r.partition == p]) for p in numbers}


def sampled(records: dict[int, Records], policy: Policy = POLICY) -> RowSchema:
    found = sample_schema(list(records.values()), policy)
    assert found is not None
    return found


@pytest.mark.sampled(3)
@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table", "mode"), some(CASES, CASES[::3]))
def test_the_table_equals_the_source(client: Client, database: str, stream: str, table: str, mode: str) -> None:
    source = stream.split("-")[0]
    topic = topic_of(stream, table)
    records = by_partition(transformation(source, mode).apply(topics(stream)[topic]))
    target = make_table(client, database, table, sampled(records), policy=POLICY)
    feed = Feed(client, database, target, stream, topic, POLICY, records)
    feed.run(random.Random(f"{stream}/{table}/{mode}"), longest=4)
    assert feed.letters == 0
    assert equal(client, database, source, stream, table) == []


@pytest.mark.integration
def test_tables_of_one_topic_are_told_apart_by_what_the_router_adds_to_the_key(client: Client, database: str) -> None:
    """Two physical tables with the same keys; the second has the first one's rows, and deletes nothing."""
    topic = topic_of("postgres-json_schema-kc", "kc")
    recorded = topics("postgres-json_schema-kc")[topic]
    both = [*route(recorded, "shop1"), *route([r for r in recorded if r.offset < 3], "shop2")]
    moved = [Recorded(topic, 0, i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(both)]
    records = by_partition(moved)
    schema = sampled(records)
    assert [f.name for f in schema.key][-1] == "__dbz__physicalTableIdentifier"
    target = make_table(client, database, "kc", schema, policy=POLICY)
    feed = Feed(client, database, target, "routed", topic, POLICY, records)
    feed.run(random.Random(1), longest=5)
    count = client.rows(
        f"SELECT __dbz__physicalTableIdentifier AS t, count() AS n FROM {database}.kc_current GROUP BY t ORDER BY t"
    )
    first = {r.key for r in moved if r.offset < len(recorded)}
    assert count[0] == {"t": "shop1", "n": len(read_truth("postgres")["kc"].rows)}
    assert count[1]["t"] == "shop2"
    assert 0 < count[1]["n"] <= len(first)


def test_the_router_s_field_is_left_out_of_the_key_where_that_is_configured() -> None:
    topic = topic_of("mariadb-json_schema-kc", "kc")
    plain = topics("mariadb-json_schema-kc")[topic]
    routed = [
        Recorded(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in route(plain, "x")
    ]
    policy = policy_of(ignored_key_fields=("__dbz__physicalTableIdentifier",))
    schema = sampled(by_partition(routed), policy)
    assert schema == sampled(by_partition(plain))
    table = table_of(schema)
    for partition, records in by_partition(routed).items():
        have = Decoder(table, policy).decode(records)
        want = Decoder(table, POLICY).decode(by_partition(plain)[partition])
        assert have.key is not None
        assert want.key is not None
        assert have.key.equals(want.key)
        assert not have.bad
