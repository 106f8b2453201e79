"""A source column that comes in mid-stream under the name of a column which the sink fills itself."""

import json
import logging
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.avro import ID, Topic, V, envelope
from tests.support.avro import event as avro_event
from tests.support.avro import records as avro_records
from tests.support.decoding import replacing
from tests.support.event import SOURCE, event, records, row
from tests.support.memory_stream import MemoryRegistry

FORMS = ("plain", "schema", "flattened", "avro", "document")
REPLACING = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
DOCUMENTS = replacing((Column("_id", "Int64"), Column("v", "Nullable(String)")), ("_id",))
# An append table need not have the columns that the sink would fill.
APPEND = TargetTable("d", "t", Engine(Family.MERGE_TREE, "MergeTree"), REPLACING.columns[:2], ("id",))


def stream(form: str, name: str) -> tuple[Records, MemoryRegistry]:
    """Two rows, then one with a further column."""
    rows: list[dict[str, Any]] = [row(1), row(2), {**row(3), name: 7}]
    topic = Topic()
    if form == "avro":
        more = {"name": name, "type": "long"}
        pairs = [
            (topic.write("long", one["id"]), topic.write(envelope([ID, V, more] if name in one else [ID, V]), made))
            for one in rows
            for made in [avro_event("c", one)]
        ]
        return avro_records(list(pairs)), topic.registry
    if form == "document":
        source = {"connector": "mongodb", "name": "m", "ts_ms": 1, "ord": 1}
        texts = [json.dumps({"_id": one.pop("id"), **one}) for one in rows]
        values = [json.dumps({"op": "c", "after": text, "source": source}).encode() for text in texts]
        found = records(*[(str(i + 1), value) for i, value in enumerate(values)])
        return found, topic.registry
    if form == "flattened":
        values = [json.dumps(one).encode() for one in rows]
    elif form == "plain":
        values = [event("c", one) for one in rows]
    else:
        kinds = {"id": "int64", "v": "string", name: "int64"}
        values = []
        for one in rows:
            fields = [{"field": n, "type": kinds[n], "optional": True} for n in one]
            image = {"type": "struct", "field": "after", "optional": True, "fields": fields}
            schema = {"type": "struct", "fields": [image]}
            payload = {"op": "c", "after": one, "source": SOURCE}
            values.append(json.dumps({"schema": schema, "payload": payload}).encode())
    return records(*[(i + 1, value) for i, value in enumerate(values)]), topic.registry


def planned(form: str, name: str, table: TargetTable, policy: Policy) -> Plan:
    found, registry = stream(form, name)
    target = Target.of(DOCUMENTS if form == "document" and table is REPLACING else table, policy)
    return plan(found, target, Decoder(target.table, policy, registry=registry), State(alone=True), Ports())


@pytest.mark.parametrize("evolve", ["fail", "add_columns"])
@pytest.mark.parametrize("name", ["_version", "_is_deleted"])
@pytest.mark.parametrize("form", FORMS)
def test_it_stops_the_stream(form: str, name: str, evolve: str) -> None:
    with pytest.raises(StreamFailed, match=rf"event at offset (102|12) has a column '{name}'.*`d`.`t` itself"):
        planned(form, name, REPLACING, policy_of(evolve=evolve))


@pytest.mark.parametrize("name", ["_version", "_op", "_sign"])
@pytest.mark.parametrize("form", FORMS[:4])
def test_it_stops_the_stream_of_an_append_table_that_lacks_the_column(form: str, name: str) -> None:
    with pytest.raises(StreamFailed, match=f"has a column '{name}'"):
        planned(form, name, APPEND, policy_of(evolve="add_columns"))


@pytest.mark.parametrize("form", FORMS)
def test_where_it_is_ignored_the_log_says_so_once(form: str, caplog: pytest.LogCaptureFixture) -> None:
    table = TargetTable(form, "t", REPLACING.engine, REPLACING.columns, ("id",))
    if form == "document":
        table = TargetTable(form, "t", DOCUMENTS.engine, DOCUMENTS.columns, ("_id",))
    with caplog.at_level(logging.WARNING, "ch_sink"):
        for _ in range(3):
            made = planned(form, "_version", table, policy_of(evolve="ignore"))
            assert not made.bad
            assert sum(insert.rows.num_rows for insert in made.inserts) == 3
    assert [found.getMessage() for found in caplog.records] == [
        f"`{form}`.`t`: the source's column '_version' is left out; the sink writes that column itself"
    ]
