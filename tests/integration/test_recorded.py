"""Recorded streams of real connectors into the real engine: the table equals the source's final rows."""

import random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from tests.support.endpoint import clickhouse, client, database
from tests.support.fixtures import read_truth, topic_of, topics
from tests.support.stream import Feed, make_table, schema_of, typed_stream
from tests.support.truth import differences, select_list

__all__ = ["clickhouse", "client", "database"]

STREAMS = [
    f"{db}-{kind}"
    for db in ("mariadb", "postgres")
    for kind in ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain", "avro")
]
KEYLESS = {"nopk", "nopk_d"}
POLICY = Policy(truncate="apply", on_bad_record="fail")


def tables(stream: str) -> list[str]:
    known = read_truth(stream.split("-")[0])
    names = [t.rpartition(".")[2] for t in topics(stream)]
    plain_truncate = {"tr"} if stream.endswith("json_plain") else set()  # the recording lacks its truncate
    return sorted(n for n in names if n in known and n not in plain_truncate)


CASES = [(stream, table) for stream in STREAMS for table in tables(stream)]


def equal(client: Client, database: str, source: str, stream: str, table: str) -> list[str]:
    truth = read_truth(source)[table]
    types = {
        r["name"]: r["type"]
        for r in client.rows(
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String}",
            {"d": database, "t": table},
        )
    }
    rows = client.rows(f"SELECT {select_list(truth, types)} FROM {database}.`{table}_current`")
    return differences(source, stream, truth, types, [tuple(r.values()) for r in rows])


def made(client: Client, database: str, stream: str, table: str) -> TargetTable:
    """The table that ``init`` makes: one with a history where rows have no key."""
    engine = "append" if table in KEYLESS else "replacing"
    schema = schema_of(typed_stream(stream, table), table)
    return make_table(client, database, table, schema, engine=engine, policy=POLICY)


@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table"), CASES)
def test_the_table_equals_the_source(client: Client, database: str, stream: str, table: str) -> None:
    target = made(client, database, stream, table)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    feed.run()
    assert equal(client, database, stream.split("-")[0], stream, table) == []


@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table"), CASES)
def test_any_cut_and_any_second_attempt_gives_the_same(client: Client, database: str, stream: str, table: str) -> None:
    target = made(client, database, stream, table)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    rng = random.Random(f"{stream}/{table}")
    feed.run(rng, longest=3)
    again = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
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


@pytest.mark.integration
@pytest.mark.parametrize(("source", "table"), IN_ALL)
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
