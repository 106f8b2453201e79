"""`check` names columns that the table computes from others and that do not take their NULL."""

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.discovery.value_findings import computed_findings
from ch_sink.errors import ClickHouseError
from ch_sink.model.policy import policy_of

pytestmark = pytest.mark.integration

TABLE = (
    "id Int64, note Nullable(String), name String, "
    "size UInt64 MATERIALIZED length(note), "
    "safe UInt64 MATERIALIZED length(ifNull(note, '')), "
    "maybe Nullable(UInt64) MATERIALIZED length(note), "
    "label String DEFAULT concat('x', note), "
    "other String DEFAULT concat('x', name), "
    "stated String DEFAULT concat('y', note), "
    "_version UInt128, _is_deleted UInt8"
)


def test_those_that_a_null_would_stop_are_named(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t ({TABLE}) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    table = detect(client, database, "t", policy_of())
    found = list(computed_findings(client, table, {"id", "note", "name", "stated", "size"}))
    assert [f.detail.split(" is ")[0] for f in found] == ["size", "label"]
    assert {f.level for f in found} == {"warn"}
    # An expression such as if(isNull(note), 0, length(note)) has that type, and never is NULL.
    assert "as a Nullable(UInt64): a NULL of it would stop" in found[0].detail
    insert = f"INSERT INTO {database}.t (id, note, name, stated) VALUES (1, NULL, 'a', 'b')"
    with pytest.raises(ClickHouseError, match="Cannot convert NULL"):
        client.command(insert)
    for name in ("size", "label"):
        client.command(f"ALTER TABLE {database}.t DROP COLUMN {name}")
    client.command(insert)
