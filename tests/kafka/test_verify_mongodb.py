"""``verify``, ``repair`` and ``resync`` against MongoDB, as a user runs them.

The events are the connector's documented ones and drawn histories; the source is `tests.support.mongo_server`, which
the real driver connects to. Nothing here has ever been run against a real MongoDB."""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.trust import continuous
from tests.support.hand import Event
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.mongo_server import MongoServer
from tests.support.mongodb import draw_collection, event, key_of, sample
from tests.support.sink import config_file, inside, run_inline

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]

ANNE = {"_id": 1004, "first_name": "Anne Marie", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
OTHERS: list[dict[str, Any]] = [
    {"_id": n, "first_name": f"name {n}", "email": None, "tags": [n, {"a": 1.5}], "visits": n}
    for n in range(2000, 2040)
]


@dataclass
class Stand:
    """A stream of a collection, its table, and the collection."""

    folder: Path
    kafka: LocalKafka
    clickhouse: EmbeddedClickHouse
    client: Client
    name: str
    server: MongoServer
    config: Path = field(init=False)
    topic: str = ""

    def stream(self, documents: Sequence[dict[str, Any]], events: Sequence[Event], **more: Any) -> None:
        """Init a table for the events. ``documents``: what the collection has."""
        self.topic = topic = f"{fresh_topic('fulfillment')}.inventory.customers"
        self.kafka.create_topic(topic, 1)
        produce(self.kafka, recorded(topic, list(events)), topic)
        self.server.collections["inventory.customers"] = documents
        self.config = config_file(
            self.folder, self.kafka, self.clickhouse, topic, "customers", self.name,
            source={"url": f"mongodb://127.0.0.1:{self.server.port}/?replicaSet=rs0&serverSelectionTimeoutMS=500"},
            **more,
        )  # fmt: skip
        made = inside("init", self.config, "--apply")
        assert made.returncode == 0, made.stderr

    def send(self, change: Event) -> None:
        """One change more, which the stream applies."""
        produce(self.kafka, recorded(self.topic, [change]), self.topic)
        run_inline(self.config)

    def verify(self, *more: str) -> tuple[int, dict[str, Any]]:
        done = inside("verify", self.config, "--json", "--patience", "0", *more)
        assert done.stdout, done.stderr
        [stream] = json.loads(done.stdout)["streams"]
        return done.returncode, stream

    def run(self, command: str) -> None:
        done = inside(command, self.config, "--apply", "--patience", "0")
        assert done.returncode == 0, done.stderr

    def rows(self) -> int:
        return int(self.client.rows(f"SELECT count() AS n FROM {self.name}.customers_current")[0]["n"])


@pytest.fixture
def stand(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Iterator[Stand]:
    with closing(MongoServer()) as server:
        yield Stand(tmp_path, mock_kafka, clickhouse, client, database, server)


@pytest.fixture
def shop(stand: Stand) -> Stand:
    """The document's samples and some documents more, with a column for each kind of path."""
    payload = sample("create")[0]["payload"]
    update = {**sample("update")[0]["payload"], "after": None, "before": None}
    update["updateDescription"] = {**update["updateDescription"], "updatedFields": '{"first_name": "Anne Marie"}'}
    events = [Event(sample("key")[0], payload), Event(key_of(1004), {**update, "source": payload["source"]})]
    events += [event("c", d["_id"], d) for d in [{"_id": 7}, *OTHERS]] + [event("d", 7)]
    columns = {"email": "email", "first_tag": "tags.0", "inner": "tags.1.a", "visits": "visits"}
    stand.stream([copy.deepcopy(d) for d in [ANNE, *OTHERS]], events, document={"columns": columns})
    run_inline(stand.config)
    return stand


def test_differences_are_found_by_column_and_mended(shop: Stand) -> None:
    code, report = shop.verify()
    assert (code, report["against"], report["rows"], report["left_out"]) == (0, "source", 1 + len(OTHERS), [])
    documents: Any = shop.server.collections["inventory.customers"]
    documents[1]["visits"] = 5  # one value
    documents[2]["email"] = "x@example.com"  # NULL in the table
    documents[3]["tags"] = None  # NULL at the source
    del documents[4]["first_name"]  # only in the whole document
    gone = documents.pop(5)  # a delete was lost
    documents.append({"_id": 1, "email": "new@example.com"})
    code, report = shop.verify()
    found = {e["key"]["_id"]: (e["kind"], set(e["columns"])) for e in report["examples"]}
    assert (code, report["missing"], report["extra"], report["different"]) == (1, 1, 1, 4)
    assert {key: found[key][1] for key in (2000, 2001, 2002, 2003)} == {
        2000: {"document", "visits"}, 2001: {"document", "email"}, 2002: {"document", "first_tag", "inner"},
        2003: {"document"},
    }  # fmt: skip
    assert (found[gone["_id"]][0], found[1][0]) == ("extra", "missing")
    [value] = [e["columns"]["visits"] for e in report["examples"] if e["key"]["_id"] == 2000]
    assert value == [5, 2000]
    shop.run("repair")
    assert shop.verify()[0] == 0


@pytest.mark.long
def test_a_change_that_is_under_way_is_no_difference(shop: Stand) -> None:
    """The source is ahead when it is read; the stream gets the change afterwards."""
    shop.server.collections["inventory.customers"][1]["visits"] = 5  # type: ignore[index]
    assert shop.verify()[1]["different"] == 1
    shop.server.then = lambda: shop.send(event("u", 2000, {**OTHERS[0], "visits": 5}))
    code, report = shop.verify("--patience", "8")
    assert (code, report["different"], report["changing"]) == (0, 0, 0)


@pytest.mark.long
def test_parts_are_read_by_several_processes_and_one_after_the_other(
    shop: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "PART", 15)
    shop.server.collections["inventory.customers"] = [ANNE, *OTHERS[1:]]
    code, report = shop.verify("--parallel", "2")
    assert (code, report["rows"], report["extra"], report["different"]) == (1, 1 + len(OTHERS), 1, 0)
    assert any("min" in command and "max" in command for command in shop.server.seen)
    shop.server.seen.clear()
    done = inside("verify", shop.config, "--continuous", "--rounds", "1", "--load", "100%", "--patience", "0", "--json")
    [found] = json.loads(done.stdout)["streams"]
    assert (done.returncode, found["extra"], found["missing"]) == (1, 1, 0)
    assert [("min" in c, "max" in c) for c in shop.server.seen if "find" in c and "limit" not in c] == [
        (False, True), (True, True), (True, False)
    ]  # fmt: skip


@pytest.mark.long
def test_a_collection_that_is_away_or_another_is_no_empty_one(shop: Stand) -> None:
    for setting, said in (
        ("source.table=inventory.nothing.here", "it does not exist, or the user may not see it"),
        ("source.url=mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300", "refuses the login: 127.0.0.1:1"),
        ("source.username=debezium", "refuses the login: Authentication failed."),
        ("source.url=mongodb://h/?tlsCertificateKeyFilePassword=hunter2", "must not have a password"),
    ):
        done = inside("verify", shop.config, "--set", setting, "--set", "source.password=hunter3")
        assert done.returncode in (1, 2)
        assert said in done.stderr, (setting, done.stderr)
        assert "hunter" not in done.stderr


@pytest.mark.long
def test_a_value_that_its_column_cannot_hold_is_named_and_can_be_left_out(shop: Stand) -> None:
    documents: Any = shop.server.collections["inventory.customers"]
    shop.client.command(f"ALTER TABLE {shop.name}.customers MODIFY COLUMN visits Nullable(Int32)")
    documents[1]["visits"] = "many"
    done = inside("verify", shop.config, "--patience", "0")
    assert done.returncode == 1
    assert "column 'visits' of the source holds a value that cannot be read" in done.stderr
    assert "--columns" in done.stderr
    assert shop.verify("--columns", "email,first_tag")[0] == 0


def test_a_document_whose_key_is_of_another_kind_is_named(shop: Stand) -> None:
    shop.server.collections["inventory.customers"] = [ANNE, {"_id": "1004"}, *OTHERS]
    done = inside("verify", shop.config, "--patience", "0")
    assert done.returncode == 1
    assert 'the document\'s _id is "1004", and the key column of type Int64 takes numbers alone' in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("seed", "more"),
    [
        pytest.param(11, {"document": {"columns": {"first_tag": "tags.0", "name": "name"}}}, marks=pytest.mark.long),
        (12, {"document": {"keys": "typed"}, "engine": "collapsing"}),
        (
            13,
            {"document": {"columns": {"a": "a"}}, "init": {"document_type": "JSON"}, "engine": "sign-replacing"},
        ),
    ],
)
def test_drawn_collections_equal_their_source(stand: Stand, seed: int, more: dict[str, Any]) -> None:
    collection, _ = draw_collection(seed, 60)
    stand.stream(list(collection.documents.values()), collection.events("strict"), **more)
    run_inline(stand.config)
    code, report = stand.verify()
    assert (code, report["different"], report["missing"], report["extra"]) == (0, 0, 0, 0), report["examples"]
    assert report["rows"] == len(collection.documents)


@pytest.mark.long
def test_a_table_is_filled_anew_and_for_the_first_time(shop: Stand) -> None:
    shop.client.command(f"INSERT INTO {shop.name}.customers (_id, document, _version) VALUES (99999, '{{}}', 1)")
    assert shop.verify()[1]["extra"] == 1
    shop.run("resync")
    assert shop.verify()[0] == 0
    assert shop.rows() == 1 + len(OTHERS)


@pytest.mark.long
def test_an_empty_table_is_filled_from_the_collection(stand: Stand) -> None:
    documents = [{"_id": n, "n": n} for n in range(300)]
    stand.stream(documents, [event("c", n, {"_id": n, "n": n}) for n in range(5)])
    stand.run("resync")
    assert stand.rows() == 300
    run_inline(stand.config)
    assert stand.verify()[0] == 0


def topic_of(kafka: LocalKafka, events: list[Event]) -> str:
    name = fresh_topic("customers")
    kafka.create_topic(name, 1)
    produce(kafka, recorded(name, events))
    return name


def test_init_and_check(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    collection, dialect = draw_collection(77, 70)
    topic = topic_of(mock_kafka, collection.events(dialect))
    config = config_file(
        tmp_path, mock_kafka, clickhouse, topic, "customers", database,
        document={"columns": {"first_tag": "tags.0"}}, init={"document_type": "JSON"},
    )  # fmt: skip
    made = inside("init", config, "--apply")
    assert made.returncode == 0, made.stderr
    columns = {str(row["name"]): str(row["type"]) for row in client.rows(f"DESCRIBE TABLE {database}.customers")}
    assert list(columns) == ["_id", "first_tag", "document", "_version", "_is_deleted"]
    assert columns["document"] == "JSON"
    found = json.loads(inside("check", config, "--json").stdout)["findings"]
    assert [f["level"] for f in found if f["title"] == "documents"] == ["ok", "warn"]
    assert [f["detail"] for f in found if f["title"] == "source"] == ["mongodb, ordered by kafka_offset"]
    assert {f["title"] for f in found if f["level"] == "fail"} <= {"java"}
    client.command(f"ALTER TABLE {database}.customers DROP COLUMN first_tag")
    found = json.loads(inside("check", config, "--json").stdout)["findings"]
    failed = [f["detail"] for f in found if f["title"] == "documents" and f["level"] == "fail"]
    assert len(failed) == 1
    assert "first_tag" in failed[0]
