"""Recorded streams of real connectors and the tables that are to equal their sources."""

import random
from collections.abc import Sequence

from ch_sink.clickhouse import Client
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.policy import policy_of
from ch_sink.types.connect import RowSchema
from tests.support.fixtures import as_records, read_truth, registry, topic_of, topics
from tests.support.truth import differences, select_list

STREAMS = [
    f"{db}-{kind}"
    for db in ("mariadb", "postgres")
    for kind in ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain", "avro")
]


KEYLESS = {"nopk", "nopk_d"}


POLICY = policy_of(truncate="apply", on_bad_record="fail")


def tables(stream: str) -> list[str]:
    known = read_truth(stream.split("-")[0])
    names = [t.rpartition(".")[2] for t in topics(stream)]
    plain_truncate = {"tr"} if stream.endswith("json_plain") else set()  # the recording lacks its truncate
    return sorted(n for n in names if n in known and n not in plain_truncate)


CASES = [(stream, table) for stream in STREAMS for table in tables(stream)]


def one_encoding_each(cases: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each table of either database once, all encodings among them."""
    shuffled = random.Random(0).sample(cases, len(cases))
    return list({(stream.split("-")[0], table): (stream, table) for stream, table in shuffled}.values())


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


def at_the_snapshot(stream: str, table: str) -> RowSchema:
    """What ``init`` found when there was nothing but the snapshot."""
    first = topics(stream)[topic_of(stream, table)][0]
    found = sample_schema(as_records([first]), registry=registry(stream))
    assert found is not None
    return found
