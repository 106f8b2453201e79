"""MongoDB in the real engine: the connector's own sample events as a stream, and drawn histories of a collection."""

import json
import random
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value, some
from tests.support.hand import Event, HandFed
from tests.support.mongodb import SAMPLES, Description, draw_collection, event, key_of, sample, truth, update_event

pytestmark = pytest.mark.integration

SOURCE = "_id String, document {document}, first_name Nullable(String), email String, hi Nullable(String)"
TAIL = "ORDER BY _id SETTINGS non_replicated_deduplication_window = 1000"
ENGINES = {
    "replacing": "({0}, _version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) {1}",
    "sign": "({0}, _version UInt128, _sign Int8) ENGINE = ReplacingMergeTree(_version) {1}",
    "collapsing": "({0}, _sign Int8, _version UInt128) ENGINE = CollapsingMergeTree(_sign) {1}",
    "versioned": "({0}, _sign Int8, _version UInt128) ENGINE = VersionedCollapsingMergeTree(_sign, _version) {1}",
    "append": "({0}, _op String, _sign Int8, _version UInt128) ENGINE = MergeTree {1}",
}


def ddl(engine: str, columns: str) -> str:
    return ENGINES[engine].format(columns, TAIL)


def envelope(name: str) -> dict[str, Any]:
    """A sample's payload. Its source block, where the document leaves it out, is the create event's."""
    found: dict[str, Any] = sample(name)[0]
    payload: dict[str, Any] = found.get("payload", found)
    whole = sample("create")[0]["payload"]["source"]
    return {**payload, "source": {**whole, **payload["source"]}}


def with_schema(payload: dict[str, Any]) -> dict[str, Any]:
    """In the schema envelope of the create event, which all events of a collection share."""
    return {"schema": sample("create")[0]["schema"], "payload": payload}


def key_ids() -> dict[str, dict[str, str]]:
    """The document's table of keys: BSON type → key."""
    lines = [line for line in sample_lines("key_ids") if line]
    out = {}
    for i, line in enumerate(lines):
        if line.startswith('{ "id"'):
            out[lines[i - 2]] = json.loads(line)
    return out


def sample_lines(name: str) -> list[str]:
    return (SAMPLES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def stream() -> list[Event]:
    """The document's samples in an order that a collection can have."""
    begin, end = sample("transaction")
    key = sample("key")[0]
    other = {"id": '"1"'}
    events = [
        Event(other, envelope("incremental")),
        Event(None, begin),
        Event(key, envelope("enriched")),
        Event(None, end),
        Event(key, with_schema(envelope("create"))),
        Event(key, with_schema(envelope("update"))),
        Event(key, with_schema(told_only(envelope("update"), '{"email": "anne@noanswer.org", "phone.home": "5"}'))),
        Event(key, with_schema(envelope("delete"))),
        Event(key, None),
        Event(key, with_schema(envelope("create"))),
        Event(key, told_only(envelope("update"), '{"first_name": "Anne Marie"}')),
    ]
    texts = {n: i["id"] for n, i in key_ids().items()}
    assert set(texts) == {"Integer", "Float", "String", "Document", "ObjectId", "Binary"}
    created = envelope("create")
    for text in texts.values():
        document = f'{{"_id" : {text}, "email" : "e"}}'
        events += [Event({"id": text}, {**created, "after": document})]
    events.append(Event({"id": texts["Float"]}, {**created, "op": "d", "after": None}))
    return events


def told_only(payload: dict[str, Any], fields: str) -> dict[str, Any]:
    """The update as ``capture.mode=change_streams`` sends it: neither image, only what changed."""
    told = {**payload["updateDescription"], "updatedFields": fields}
    return {**payload, "before": None, "after": None, "updateDescription": told}


ANNE = {"_id": 1004, "first_name": "Anne Marie", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
TRUTH: dict[str, tuple[Any, str | None, str | None]] = {
    # key → document, first_name, email. The collection has the number 1234 and the text "1234" as keys.
    "1004": (ANNE, "Anne Marie", "annek@noanswer.org"),
    '"1"': ({"pk": "1", "value": "New data"}, None, ""),
    "1234": ({"_id": 1234, "email": "e"}, None, "e"),
    '"1234"': ({"_id": "1234", "email": "e"}, None, "e"),
    '{"hi":"kafka","nums":[{"$numberDouble":"10.0"},{"$numberDouble":"100.0"},{"$numberDouble":"1000.0"}]}': (
        {"_id": {"hi": "kafka", "nums": [10.0, 100.0, 1000.0]}, "email": "e"}, None, "e"
    ),
    '{"$oid":"596e275826f08b2730779e1f"}': ({"_id": "596e275826f08b2730779e1f", "email": "e"}, None, "e"),
    '{"$binary":{"base64":"a2Fma2E=","subType":"00"}}': (
        {"_id": {"$binary": {"base64": "a2Fma2E=", "subType": "00"}}, "email": "e"}, None, "e"
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "cut"), each_value(ENGINES, [100, 1, 3]))
def test_the_documents_samples(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    fed = HandFed(
        client, database, own_tables, ddl(engine, SOURCE.format(document="String")), ("_id",),
        policy_of(on_bad_record="fail", document_keys="typed"),
    )  # fmt: skip
    done = fed.feed(stream(), cut=cut)
    for merged in (False, True):
        if merged and engine != "append":
            fed.merge()
        found = {row[0]: (json.loads(row[1]), row[2], row[3]) for row in fed.view()}
        assert found == TRUTH
    assert sum(d.counts.kinds["tombstone"] for d in done) == 1
    assert sum(d.counts.kinds["transaction"] for d in done) == 2
    if engine in ("collapsing", "versioned"):
        sums = fed.query("SELECT _id, toInt64(sum(_sign)) AS s FROM {t} GROUP BY _id HAVING s != 0")
        assert dict(sums) == dict.fromkeys(TRUTH, 1)


def test_the_samples_in_a_json_column(client: Client, database: str, own_tables: str) -> None:
    fed = HandFed(
        client, database, own_tables, ddl("replacing", SOURCE.format(document="JSON")), ("_id",),
        policy_of(on_bad_record="fail", document_keys="typed"),
    )  # fmt: skip
    fed.feed(stream(), cut=2)
    found = fed.query("SELECT _id, document.last_name::Nullable(String), document.email::Nullable(String) "
                      "FROM {t}_current WHERE document.last_name IS NOT NULL")  # fmt: skip
    assert found == [("1004", "Kretchmar", "annek@noanswer.org")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "engine", some([("replacing",), ("sign",), ("collapsing",), ("versioned",)], [("sign",), ("collapsing",)])
)
def test_drawn_histories(client: Client, database: str, own_tables: str, engine: str) -> None:
    for seed in range(3):
        client.command(f"DROP TABLE IF EXISTS {database}.t SYNC")
        client.command(f"DROP VIEW IF EXISTS {database}.t_current SYNC")
        collection, dialect = draw_collection(seed + 9000, 30)
        fed = HandFed(
            client, database, own_tables, ddl(engine, "_id String, document String, a Nullable(String)"), ("_id",),
            policy_of(on_bad_record="fail"),
        )  # fmt: skip
        fed.feed(collection.events(dialect), cut=random.Random(seed).choice((2, 7)))
        found = sorted(json.dumps(json.loads(row[1]), sort_keys=True) for row in fed.view())
        assert found == truth(collection), f"seed {seed}"


def test_an_update_of_a_part_asks_once_per_chunk(client: Client, database: str, own_tables: str) -> None:
    """Updates of stored documents: one lookup for all of them; none where the chunk has the document."""
    fed = HandFed(
        client, database, own_tables, ddl("replacing", "_id Int64, document String, n Nullable(Int32)"), ("_id",),
        policy_of(on_bad_record="fail"),
    )  # fmt: skip
    fed.feed([event("c", i, {"_id": i, "n": i, "tags": ["x"]}) for i in range(50)])
    fed.feed([event("c", i, {"_id": i, "n": i}) for i in range(50, 60)] + [update_event(50, Description({"n": 5}))])
    assert fed.lookups == 0
    updates = [update_event(i, Description({"n": i + 1, "tags.1": "y"})) for i in range(50)]
    fed.feed([*updates, update_event(7, Description({}, ["tags"]))])
    assert fed.lookups == 1
    rows = {row[0]: row for row in fed.view()}
    assert rows[3] == (3, '{"_id":3,"n":4,"tags":["x","y"]}', 4)
    assert rows[7] == (7, '{"_id":7,"n":8}', 8)
    assert rows[50] == (50, '{"_id":50,"n":5}', 5)


def test_a_document_that_nobody_knows(client: Client, database: str, own_tables: str) -> None:
    table = ddl("replacing", "_id Int64, document String, n Nullable(Int32)")
    fed = HandFed(client, database, own_tables, table, ("_id",), policy_of())
    stray = [update_event(1, Description({"n": 5})), event("c", 2, {"_id": 2}), update_event(2, Description({"n": 6}))]
    done = fed.feed(stray)
    assert [d.counts.dead_letters for d in done] == [1]
    assert fed.view() == [(2, '{"_id":2,"n":6}', 6)]
    [letter] = client.rows(f"SELECT kind, reason FROM {own_tables}.dead_letters WHERE stream = 'hand/{fed.name}'")
    assert letter["kind"] == "unresolved"
    assert "says only what it changed" in str(letter["reason"])
    assert key_of(1) == {"id": "1"}
