"""A table without a key, whose connector sends a stretch again after a crash: null keys go to any partition."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.fixtures import as_records, topic_of, topics
from tests.support.recorded import equal
from tests.support.stream import Feed, make_table, schema_of

POLICY = policy_of(on_bad_record="fail")
SAME, OTHER = 0, 1


@pytest.mark.integration
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
@pytest.mark.parametrize(
    "partition",
    [
        SAME,
        pytest.param(OTHER, marks=pytest.mark.xfail(reason="a repeat is looked for in its own partition only")),
    ],
)
def test_a_stretch_sent_again(client: Client, database: str, source: str, partition: int) -> None:
    stream = f"{source}-json_schema"
    topic = topic_of(stream, "nopk")
    sent = sorted(topics(stream)[topic], key=lambda r: (r.timestamp, r.partition, r.offset))
    again = sent[2:4]
    assert b'"op":"c"' in (again[0].value or b"")
    places = {SAME: sent, OTHER: []}
    places[partition] = [*places[partition], *again]
    records = {
        p: as_records([replace(r, partition=p, offset=i) for i, r in enumerate(found)])
        for p, found in places.items()
        if found
    }
    target = make_table(client, database, "nopk", schema_of(stream, "nopk"), engine="append", policy=POLICY)
    Feed(client, database, target, stream, topic, POLICY, records=records).run()
    assert equal(client, database, source, stream, "nopk") == []
