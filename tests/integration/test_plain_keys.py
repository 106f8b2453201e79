"""Keys without a schema: two of them never become one row, whatever the table's column holds of them."""

import json
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import Client, detect, execute
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.views import view_of
from tests.support.event import event
from tests.support.state_tables import create_statement
from tests.support.stream import Feed

pytestmark = pytest.mark.integration

APART: dict[str, tuple[Any, Any, int]] = {
    "DateTime": (1000, 1001, 1),
    "DateTime64(3)": ("2024-01-01T01:00:00.000Z", "2024-01-01T01:00:00.0001Z", 1),
    "DateTime64(1)": (100, 101, 1),
    "Date": ("2024-01-01", "2024-01-01T02:00:00Z", 1),
    "Time64(3)": ("01:00:00.000", "01:00:00.0001", 1),
    "Float32": (16777216, 16777217, 1),
    "FixedString(4)": ("ab", "ab\0", 1),
    "IPv6": ("::1", "0:0:0:0:0:0:0:1", 1),
    "UUID": ("00000000-0000-0000-0000-00000000000a", "0000000000000000000000000000000a", 1),
    "Float64": (0.1, 0.25, 0),
    "Date32": (19_000, 19_001, 0),
    "DateTime64(6)": ("2024-01-01T01:00:00.000001Z", "2024-01-01T01:00:00Z", 0),
    "IPv4": ("1.2.3.4", "1.2.3.5", 0),
    "String": ("7", "007", 0),
}
"""Type of the column → two keys, and how many of them are dead letters."""


@pytest.mark.parametrize("kind", APART)
def test_two_keys_are_two_rows_or_a_dead_letter(client: Client, database: str, kind: str) -> None:
    *keys, letters = APART[kind]
    rest = "v String, _version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted)"
    client.command(
        f"CREATE TABLE {database}.t (id {kind}, {rest} ORDER BY id",
        settings={"enable_time_time64_type": 1},
    )
    policy = policy_of(on_bad_record="dead_letter")
    target = detect(client, database, "t", policy)
    client.command(view_of(target, ("id",)))
    own = ("dead_letters", "handover", "pending")
    execute(client, [create_statement(name, database, f"ch_sink_{name}") for name in own])
    at = np.arange(2, dtype=np.int64)
    values = [event(after={"id": key, "v": str(n)}, pos=n + 1) for n, key in enumerate(keys)]
    given = Records("t", 0, at, at, [json.dumps({"id": key}).encode() for key in keys], values)
    feed = Feed(client, database, target, f"{database}/t", "t", policy, {0: given})
    feed.run()
    shown = [row["v"] for row in client.rows(f"SELECT v FROM {database}.t_current ORDER BY v")]
    assert (shown, feed.letters) == (["0"] if letters else ["0", "1"], letters)
