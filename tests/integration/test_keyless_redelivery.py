"""A table without a key, whose connector sends a stretch again after a crash: null keys go to any partition."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.fixtures import as_records, topic_of, topics
from tests.support.hand import APPEND, ENGINES, OWN, mysql, row
from tests.support.hand_commands import each_of, hand, made
from tests.support.hand_steps import Rows, repaired_from_source
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


@pytest.mark.integration
@each_of("engine", ("append", *ENGINES), "append")
def test_rows_of_a_snapshot_whose_key_is_configured(client: Client, database: str, engine: str) -> None:
    """They share one position, and Kafka keys do not tell them apart. What is sent again is recognised all the same."""
    snapshot = [mysql("r", None, None, row(i, f"s{i}"), 90, snapshot="true") for i in range(1, 6)]
    changes = [mysql("u", None, row(1, "s1"), row(1, "a"), 100), mysql("u", None, row(1, "a"), row(1, "b"), 110)]
    it = hand(client, database, engine, [*snapshot, *snapshot[3:], *changes, *changes], key_columns=("id",))
    it.read((0, 3), (0, 11))
    assert it.view() == [(1, "b"), *((i, f"s{i}") for i in range(2, 6))]
    assert it.verify() == (0, 0, 0)
    if engine == "append":
        assert len(it.stored()) == 7


@pytest.mark.integration
@each_of("engine", ("append", *ENGINES), "replacing")
def test_an_update_that_changes_a_configured_key_is_a_letter_and_no_second_row(
    client: Client, database: str, engine: str
) -> None:
    """It would be two changes, and one record without a Kafka key states both: the former row would stay as well."""
    events = [mysql("c", None, None, row(i, f"v{i}"), 100 + i) for i in (1, 2)]
    moved = mysql("u", None, row(1, "v1"), row(7, "v1"), 110)
    later = [mysql("u", None, row(7, "v1"), row(7, "w"), 120), mysql("u", None, row(2, "v2"), row(2, "x"), 130)]
    it = made(client, database, OWN.get(engine, APPEND), policy_of(key_columns=("id",)), [[*events, moved]])
    it.read((0, 3))
    assert (it.feed.letters, it.view()) == (1, [(1, "v1"), (2, "v2")])
    it.source = Rows([(7, "v1"), (2, "v2")])
    assert it.verify_source() == (1, 1, 0)
    if engine != "append":
        repaired_from_source(it, (7, "v1"), (2, "v2"))
        it.topic([*events, moved, *later])
        it.read((0, 5))
        assert it.view() == [(2, "x"), (7, "w")]
