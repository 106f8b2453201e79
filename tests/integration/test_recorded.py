"""Recorded streams of real connectors into the real engine: the table equals the source's final rows."""

import random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.table.model import TargetTable
from tests.support.choose import some
from tests.support.fixtures import read_truth, topic_of
from tests.support.recorded import CASES, KEYLESS, POLICY, equal, tables
from tests.support.stream import Feed, make_table, schema_of, typed_stream

SHUFFLED = random.Random(0).sample(CASES, len(CASES))
CUT = list({(stream.split("-")[0], table): (stream, table) for stream, table in SHUFFLED}.values())
"""Each table of either database, in one of its encodings."""


def made(client: Client, database: str, stream: str, table: str, **spec: object) -> TargetTable:
    """The table that ``init`` makes: one with a history where rows have no key."""
    engine = "append" if table in KEYLESS else "replacing"
    schema = schema_of(typed_stream(stream, table), table)
    return make_table(client, database, table, schema, engine=engine, policy=POLICY, **spec)


@pytest.mark.sampled(6)
@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table"), CASES)
def test_the_table_equals_the_source(client: Client, database: str, stream: str, table: str) -> None:
    target = made(client, database, stream, table)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    feed.run()
    assert equal(client, database, stream.split("-")[0], stream, table) == []


@pytest.mark.sampled(2)
@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table"), some(CASES, CUT[::3]))
def test_any_cut_and_any_second_attempt_gives_the_same(client: Client, database: str, stream: str, table: str) -> None:
    target = made(client, database, stream, table)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    rng = random.Random(f"{stream}/{table}")
    feed.run(rng, longest=3)
    again = Feed(client, database, target, stream, topic_of(stream, table), POLICY, again=feed)
    if table in KEYLESS:  # rows without a key are known by their chunk's tokens: a second attempt is cut alike
        again.run(random.Random(f"{stream}/{table}"), longest=3)
    else:
        again.run(rng, longest=5)
    assert equal(client, database, stream.split("-")[0], stream, table) == []


ENCODINGS = ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain", "avro")
IN_ALL = sorted(
    (db, table)
    for db in ("mariadb", "postgres")
    for table in {t for kind in ENCODINGS[:3] for t in tables(f"{db}-{kind}")}
    & set(tables(f"{db}-json_plain"))
    & set(tables(f"{db}-avro"))
)


@pytest.mark.sampled(1)
@pytest.mark.integration
@pytest.mark.parametrize(("source", "table"), some(IN_ALL, IN_ALL[::6]))
def test_every_encoding_gives_the_same_table(client: Client, database: str, source: str, table: str) -> None:
    found: dict[str, list[str]] = {}
    schema = schema_of(typed_stream(f"{source}-json_plain", table), table)
    for kind in ENCODINGS:
        stream = f"{source}-{kind}"
        if table in tables(stream):
            name = f"{table} {kind}"
            engine = "append" if table in KEYLESS else "replacing"
            target = make_table(client, database, name, schema, engine=engine, policy=POLICY)
            Feed(client, database, target, stream, topic_of(stream, table), POLICY).run()
            columns = ", ".join(f"`{f.name}`" for f in schema.fields)
            rows = client.rows(f"SELECT toString(tuple({columns})) AS r FROM {database}.`{name}_current`")
            found[kind] = sorted(str(row["r"]) for row in rows)
    assert len(found) == 3
    assert len(found["avro"]) == len(read_truth(source)[table].rows)
    assert found["avro"] == found["json_plain"] == next(iter(found.values()))
