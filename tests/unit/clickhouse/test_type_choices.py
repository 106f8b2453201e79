"""Choices of column types, from the statement to the stored value."""

from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import ClickHouseTableAdmin, ClickHouseWriter, Client, detect
from ch_sink.decode import Decoder
from ch_sink.decode.unknown_columns import declared_unknown
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.table.ddl import create_table
from ch_sink.table.spec import TableSpec
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import Field, RowSchema, SourceType, parse_connect_schema
from tests.support.one_column import records
from tests.unit.types.type_cases import Case

JSON = "io.debezium.data.Json"

ARRAY: dict[str, Any] = {"type": "array", "items": {"type": "string", "optional": True}, "optional": True}
DOCUMENT: dict[str, Any] = {"type": "string", "name": JSON, "optional": True}


@pytest.mark.parametrize(
    ("schema", "literals", "question", "answers"),
    [
        (ARRAY, [["a", None], []], "length(x) AS n, x[1] AS v", [(2, "a"), (0, None), (0, None)]),
        (DOCUMENT, ['{"a":{"b":7}}', "{}"], "isNull(x) AS n, toString(x.a.b) AS v", [(0, "7"), (0, ""), (1, "")]),
    ],
    ids=["arrays", "JSON"],
)
def test_what_init_makes_is_filled_and_read(
    client: Client, database: str, schema: Any, literals: list[Any], question: str, answers: list[tuple[Any, Any]]
) -> None:
    """The last row's value is NULL."""
    key = Field("id", SourceType("int64", optional=False))
    row = RowSchema((key, Field("x", parse_connect_schema(schema))), (key,))
    choices = TypeChoices(arrays="empty_for_null", json_type="JSON")
    client.command(create_table(row, TableSpec(database, "t", types=choices)))
    table = detect(client, database, "t", policy_of())
    case = Case("x", schema, "", tuple((literal, "") for literal in literals))
    batch = Decoder(table, policy_of()).decode(records(case, schema=True))
    assert not batch.bad
    ClickHouseWriter(client, table).write(Insert(batch.after, "rows"), "token")
    found = client.rows(f"SELECT {question} FROM {database}.t ORDER BY id")
    assert [(r["n"], r["v"]) for r in found] == answers


def test_added_columns_follow_the_choice_with_their_defaults(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t (id Int64, ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY id")
    client.command(f"INSERT INTO {database}.t VALUES (1, 1)")
    table = detect(client, database, "t", policy_of())
    stated = {"default": ["a", "it's"], "has_default": True}
    new = {
        "id": SourceType("int64", optional=False),
        "tags": SourceType("array", items=SourceType("string"), **stated),  # type: ignore[arg-type]
        "doc": SourceType("string", JSON, default='{"a":1}', has_default=True),
    }
    choices = TypeChoices(arrays="empty_for_null", json_columns=(("doc", "JSON"),))
    evolution = ClickHouseTableAdmin(client, database, "t", policy_of(), types=choices)
    after = evolution.carry_out(table, declared_unknown(table, new), ("id",))
    types = {column.name: column.type for column in after.columns}
    assert (types["tags"], types["doc"]) == ("Array(Nullable(String))", "Nullable(JSON)")
    [row] = client.rows(f"SELECT toString(tags) AS tags, toString(doc.a) AS a FROM {database}.t")
    assert row == {"tags": "['a','it\\'s']", "a": "1"}
    assert pa.types.is_list(dict(after.defaults)["tags"].type)
