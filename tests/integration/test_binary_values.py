"""Bytes that are not text: as a comparison shows them, and as a user names a key that has them."""

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import StreamFailed
from ch_sink.table.model import TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.key import wanted_key
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.sides import Side
from tests.support.recorded import POLICY

pytestmark = pytest.mark.integration


@pytest.fixture
def table(client: Client, database: str) -> TargetTable:
    client.command(
        f"CREATE TABLE {database}.t (k FixedString(3), v Nullable(String), a Array(String), _version UInt64, "
        "_is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY k"
    )
    return detect(client, database, "t", POLICY)


def test_bytes_are_shown_as_their_digits_and_text_as_text(client: Client, database: str, table: TargetTable) -> None:
    columns = tuple(column for column in table.columns if column.name in "kva")
    rows = "(unhex('ff0022'), unhex('fe22'), [unhex('ff'), 'x']), ('abc', 'é\"', ['y']), (unhex('000000'), NULL, ['z'])"
    with shadow_tables(client, shadow_of(table, database, ("k",), columns)) as shadow:
        client.command(f"INSERT INTO {shadow.table.qualified} (k, v, a) VALUES {rows}")
        client.command(f"INSERT INTO {table.qualified} (k, v, a, _version) VALUES ('abc', unhex('00ff'), ['y'], 1)")
        found = Differences(
            client, shadow.differences, Side(shadow.table, ("k",), columns), Side(table, ("k",), columns)
        )
        found.find(0, found.totals())
        shown = {one.key["k"]: one.columns for one in found.examples(0, 10)}
    assert shown == {
        "ff0022": {"v": ("fe22", None), "a": (["\ufffd", "x"], None)},
        "abc": {"v": ('é"', "00ff")},
        "\0\0\0": {"v": (None, None), "a": (["z"], None)},
    }


def test_a_key_of_bytes_is_named_by_its_digits(client: Client, table: TargetTable) -> None:
    client.command(f"INSERT INTO {table.qualified} (k, v) VALUES (unhex('ff0022'), 'it'), ('abc', 'other')")
    wanted = wanted_key(client, table, {"k": {"hex": "FF0022"}})
    assert client.rows(f"SELECT v FROM {table.qualified} WHERE {wanted.condition}") == [{"v": "it"}]
    found = client.arrow(f"SELECT k FROM {table.qualified} ORDER BY k")
    assert list(wanted.within(found)) == [False, True]
    for value in ({"hex": "xy"}, {"hex": "ff", "more": 1}, {"oct": "7"}):
        with pytest.raises(StreamFailed, match="is not a plain value"):
            wanted_key(client, table, {"k": value})
