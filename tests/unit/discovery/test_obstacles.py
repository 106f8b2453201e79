"""Topics that no table can follow: what is said of them before anything is created."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.config import Config
from ch_sink.decode import Decoder
from ch_sink.discovery.findings import topic_findings
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.look import Sampled, examine
from ch_sink.errors import ChSinkError, StreamFailed, TableError
from ch_sink.model.change import Headers
from ch_sink.model.policy import Policy
from ch_sink.sources import source_for
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.fixtures import partitions, registry, stream_names, topics

ROW = {"before": None, "after": {"id": 1, "v": "a"}, "source": {"connector": "mysql"}, "op": "c"}
EVENT = "4d47e190-0402-4048-bc2c-89dd54343cdc"


def config(**more: Any) -> Config:
    return Config.model_validate(
        {
            "kafka": {"topic": "t", "bootstrap.servers": "localhost:1"},
            "clickhouse": {"url": "http://localhost:1", "database": "d", "table": "t"},
            **more,
        }
    )


def seen(records: Sequence[tuple[bytes | None, Any, Headers | None]], partitions: int = 1, **more: Any) -> Sampled:
    keys, values, headers = zip(*records, strict=True)
    texts = [v if isinstance(v, bytes) or v is None else json.dumps(v).encode() for v in values]
    return examine([chunk_of(keys, texts, headers)], "t", config(**more).policy(), partitions=partitions)


def refused(looked: Sampled, **more: Any) -> ChSinkError:
    with pytest.raises(ChSinkError) as caught:
        plan_init(config(**more), looked, None)
    fails = [f for f in topic_findings(looked, config(**more)) if f.level == "fail"]
    assert [(f.detail, f.remedy) for f in fails] == [(caught.value.message, caught.value.hint)]
    return caught.value


@pytest.mark.parametrize("key", [b"Struct{id=1}", b"Struct{id=1,name=a b}", b"{id=1}"])
def test_keys_that_are_the_text_of_a_struct(key: bytes) -> None:
    error = refused(seen([(key, ROW, None), (key, None, None)]))
    assert repr(key.decode()) in error.message
    assert "key.converter" in (error.hint or "")
    assert "key_columns" in (error.hint or "")


@pytest.mark.parametrize("key_columns", [[], ["id"]])
def test_records_without_keys_in_several_partitions(key_columns: list[str]) -> None:
    truncate = {"op": "t", "source": {"connector": "mysql"}}
    error = refused(seen([(None, ROW, None)], 2, key_columns=key_columns), key_columns=key_columns)
    assert "carry no key" in error.message
    assert "Use a topic of one partition" in (error.hint or "")
    for served in (seen([(None, ROW, None)]), seen([(b'{"id":1}', ROW, None), (None, truncate, None)], 2)):
        assert served.obstacle is None


def test_text_keys_of_one_column_need_its_name() -> None:
    looked = seen([(b"k-1", ROW, None)])
    with pytest.raises(TableError, match="single values without a name") as caught:
        plan_init(config(), looked, None)
    assert "key_columns" in (caught.value.hint or "")
    plan = plan_init(config(key_columns=["id"]), looked, None)
    assert "ORDER BY (`id`)" in plan.statements[1].sql


@pytest.mark.parametrize(
    "value",
    [
        {"lineItems": [], "id": 7},
        json.dumps('{"id": 7}').encode(),
        {"schema": {"type": "string", "optional": True}, "payload": '{"id": 7}'},
    ],
)
@pytest.mark.parametrize("key", [b'"7"', b"7", b"order-7", b'{"schema":{"type":"string"},"payload":"7"}'])
def test_messages_of_the_outbox_event_router(key: bytes, value: Any) -> None:
    error = refused(seen([(key, value, [("id", EVENT.encode())]), (key, value, [("id", f'"{EVENT}"'.encode())])]))
    assert "outbox" in error.message
    assert "EventRouter" in (error.hint or "")


def test_the_newest_message_of_each_aggregate_may_be_what_is_wanted() -> None:
    rows = {"events": "flattened", "key_columns": ["id"]}
    looked = seen([(b"7", {"id": 7, "v": "x"}, [("id", EVENT.encode())])], **rows)
    assert looked.obstacle is None
    assert "ORDER BY (`id`)" in plan_init(config(**rows), looked, None).statements[1].sql


def test_rows_with_a_header_of_that_name_are_no_outbox() -> None:
    assert seen([(b'{"id":1}', ROW, [("id", EVENT.encode())])]).obstacle is None
    assert seen([(b'{"id":1}', {"id": 1, "v": "a"}, [("id", EVENT.encode())])]).obstacle is None


def test_cloud_events_are_refused() -> None:
    event = {"id": "name:s;pos:7", "specversion": "1.0", "type": "io.debezium.mysql.datachangeevent", "data": "{}"}
    error = refused(seen([(b'{"id":1}', event | {"iodebeziumop": "c"}, None)]))
    assert "CloudEvents" in error.message
    assert seen([(b'{"id":1}', event, None)]).obstacle is None, "a table may have such columns"


def test_cells_of_cassandra_are_refused_by_init_and_run() -> None:
    cell = {"value": 1, "deletion_ts": None, "set": True}
    event = {"before": None, "after": {"id": cell}, "source": {"connector": "cassandra"}, "op": "i"}
    error = refused(seen([(b'{"id":1}', event, None)]))
    assert "cassandra" in error.message
    assert "deletion time" in error.message
    with pytest.raises(StreamFailed, match="cassandra"):
        source_for("cassandra")
    part = chunk_of([b'{"id":1}'], [json.dumps(event).encode()])
    with pytest.raises(StreamFailed, match="cassandra"):
        Decoder(replacing((Column("id", "Int64"),), ("id",)), Policy()).decode(part)


def cells(*, schema: bool) -> bytes:
    """A row of cells as YugabyteDB's connector writes it."""
    row = {"id": {"value": 1, "set": True}, "v": None}
    event = {"before": None, "after": row, "source": {"connector": "yugabytedb"}, "op": "c"}
    if not schema:
        return json.dumps(event).encode()
    cell = [{"field": "value", "type": "int32", "optional": True}, {"field": "set", "type": "boolean"}]
    fields = [{"field": name, "type": "struct", "optional": True, "fields": cell} for name in row]
    image = {"field": "after", "type": "struct", "optional": True, "fields": fields}
    return json.dumps({"schema": {"type": "struct", "fields": [image]}, "payload": event}).encode()


@pytest.mark.parametrize("schema", [False, True])
def test_cells_of_any_connector(schema: bool) -> None:
    part = chunk_of([b'{"id":1}'], [cells(schema=schema)])
    assert "yugabytedb" in refused(examine([part], "t", Policy())).message
    text = (Column("id", "String"), Column("v", "Nullable(String)"))
    with pytest.raises(StreamFailed, match=r"yugabytedb.*'set' flag"):
        Decoder(replacing(text, ("id",)), Policy()).decode(part)


def test_rows_with_an_object_of_that_form_are_no_cells() -> None:
    event = {"after": {"id": 1, "v": {"value": 1, "set": True}}, "source": {"connector": "mysql"}, "op": "c"}
    part = chunk_of([b'{"id":1}'], [json.dumps(event).encode()])
    assert examine([part], "t", Policy()).obstacle is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stream", stream_names())
def test_recorded_topics_are_served(stream: str) -> None:
    for topic in topics(stream):
        if "-busy" in stream and not topic.endswith("acct"):
            continue
        looked = examine(list(partitions(stream, topic).values()), topic, Policy(), registry=registry(stream))
        assert looked.obstacle is None, topic
