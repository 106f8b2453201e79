"""The SQL that ``init`` prints, one file per case beside this one; each statement is also put to the real engine.

``CH_SINK_GOLDEN=write pytest tests/golden`` writes the files anew; review them as any other change.
"""

import datetime
import json
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from bson import Int64, ObjectId

from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import Statement, init_statements, script
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import RowSchema, SourceType, parse_connect_schema
from tests.support.engine import Engine
from tests.support.fixtures import read_stream
from tests.support.hand import Event
from tests.support.mongodb import event, sample

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """A recorded stream's table, and what ``init`` is asked to make of it."""

    stream: str
    table: str
    spec: TableSpec


def spec(**choices: object) -> TableSpec:
    return replace(TableSpec("shop", "orders"), **choices)  # type: ignore[arg-type]


MARIA, KEYS, WIDE = "mariadb-json_schema", "mariadb-json_schema-kc", "mariadb-json_schema-wide"
PG_WIDE = "postgres-json_schema-wide"
DOCUMENTS = "documents"
"""MongoDB's sample events, whose schema tells nothing of the documents."""
CASES = {
    "replacing": Case(KEYS, "kc", spec()),
    "sign_replacing": Case(KEYS, "kc", spec(engine=EngineChoice.SIGN_REPLACING)),
    "collapsing": Case(KEYS, "kc", spec(engine=EngineChoice.COLLAPSING)),
    "collapsing_partition_outside_key": Case(
        MARIA, "nn", spec(engine=EngineChoice.COLLAPSING, partition_by="toYYYYMM(ts)")
    ),
    "versioned_collapsing": Case(KEYS, "kc", spec(engine=EngineChoice.VERSIONED_COLLAPSING)),
    "append": Case(KEYS, "kc", spec(engine=EngineChoice.APPEND)),
    "append_without_key": Case(MARIA, "nopk", spec(engine=EngineChoice.APPEND)),
    "mariadb_all_types": Case(WIDE, "all_types", spec()),
    "postgres_all_types": Case(PG_WIDE, "all_types", spec()),
    "postgres_arrays_and_json": Case(
        PG_WIDE, "all_types", spec(types=TypeChoices(arrays="empty_for_null", json_type="JSON"))
    ),
    "odd_names": Case(MARIA, "odd", spec(table="we ird`s")),
    "defaults": Case(MARIA, "nn", spec()),
    "key_of_many_types": Case(MARIA, "oddkey", spec()),
    "order_by_superset": Case(MARIA, "nn", spec(order_by=("k", "id", "toDate(ts)"))),
    "order_by_other_order": Case(KEYS, "kc", spec(order_by=("k", "id"))),
    "partition_by": Case(KEYS, "kc", spec(partition_by="k % 8")),
    "partition_and_ttl": Case(MARIA, "nn", spec(partition_by="toYYYYMM(ts)", ttl="toDateTime(ts) + INTERVAL 1 YEAR")),
    "nullable_partition": Case(KEYS, "kc", spec(partition_by="intDiv(k, 100), v", allow_nullable_key=True)),
    "plain_columns": Case(WIDE, "all_types", spec(types=TypeChoices(low_cardinality=False))),
    "own_settings": Case(KEYS, "kc", spec(settings=(("index_granularity", "1024"),), dedup_window=500)),
    "key_columns": Case(MARIA, "nopk", spec(key_columns=("a",), allow_nullable_key=True)),
    "row_policy": Case(KEYS, "kc", spec(row_policy_roles=("readers", "app user"))),
    "row_policy_for_all": Case(
        KEYS, "kc", spec(engine=EngineChoice.SIGN_REPLACING, row_policy_roles=("all",), row_policy_except=("sink",))
    ),
    "on_cluster": Case(KEYS, "kc", spec(cluster="main", row_policy_roles=("readers",))),
    "replicated_path": Case(KEYS, "kc", spec(cluster="main", replication="path")),
    "replicated_server_defaults": Case(
        KEYS, "kc", spec(replication="server", engine=EngineChoice.VERSIONED_COLLAPSING)
    ),
    "mongodb": Case(DOCUMENTS, "customers", spec(table="customers")),
    "mongodb_columns": Case(DOCUMENTS, "columns", spec(table="customers", engine=EngineChoice.COLLAPSING)),
    "mongodb_json": Case(DOCUMENTS, "customers", spec(table="customers", types=TypeChoices(document_type="JSON"))),
    "replicated_append": Case(MARIA, "nopk", spec(replication="path", engine=EngineChoice.APPEND)),
}  # fmt: skip


def envelope(value: bytes | None) -> SourceType | None:
    return parse_connect_schema(json.loads(value)["schema"]) if value is not None else None


def sampled_documents(table: str) -> RowSchema:
    """What ``init`` takes from MongoDB's sample events; ``columns``: with ``document.columns``."""
    paths = (
        (("name", "first_name"), ("city", "address.city"), ("since", "since"), ("n", "n")) if table == "columns" else ()
    )
    document = {
        "_id": ObjectId("596e275826f08b2730779e1f"), "n": Int64(1), "address": {"city": "Oslo"},
        "since": datetime.datetime(2024, 2, 29),
    }  # fmt: skip
    events = [event("r", document["_id"], document)]
    if table != "columns":
        events = [Event(sample("key")[0], sample("create")[0])]
    records = Records(
        table, 0, np.arange(1), np.zeros(1, dtype=np.int64),
        [json.dumps(e.key).encode() for e in events], [json.dumps(e.value).encode() for e in events],
    )  # fmt: skip
    schema = sample_schema(records, policy_of(document_columns=paths if table == "columns" else ()))
    assert schema is not None
    return schema


@cache
def recorded_schema(stream: str, table: str) -> RowSchema:
    """Row type and key type as the connector's own schema envelope declares them."""
    if stream == DOCUMENTS:
        return sampled_documents(table)
    for record in read_stream(stream):
        if record.topic.split(".")[-1] != table or record.value is None:
            continue
        value, key = envelope(record.value), envelope(record.key)
        images = {f.name: f.type for f in value.fields} if value else {}
        if "after" in images:
            return RowSchema(images["after"].fields, key.fields if key else ())
    raise LookupError(f"{stream} has no change event of {table}")


def made(name: str) -> list[Statement]:
    case = CASES[name]
    return init_statements(recorded_schema(case.stream, case.table), case.spec)


@pytest.mark.parametrize("name", CASES)
def test_init_prints(name: str) -> None:
    path = HERE / f"{name}.sql"
    text = script(made(name))
    if os.environ.get("CH_SINK_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in HERE.glob("*.sql")} == set(CASES)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_the_engine_carries_it_out_twice(engine: Engine, name: str) -> None:
    engine.run("DROP DATABASE IF EXISTS shop SYNC")
    statements = made(name)
    # Clusters, Keeper and access control are not in the embedded engine: such statements are parsed only.
    alone = CASES[name].spec.cluster is None and CASES[name].spec.replication == "none"
    for _ in range(2):
        for statement in statements:
            carried_out = alone and "ROW POLICY" not in statement.sql
            engine.run(statement.sql if carried_out else f"EXPLAIN AST {statement.sql}")
    if alone:
        view = CASES[name].spec.view
        assert engine.rows(f"SELECT count() AS n FROM {view}") == [{"n": 0}]
        described = {row["name"] for row in engine.rows(f"DESCRIBE TABLE {view}")}
        assert described == {f.name for f in recorded_schema(CASES[name].stream, CASES[name].table).fields}
