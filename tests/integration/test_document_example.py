"""The sbtest example of the sink's first description: key (id, k), partitioned by k, an update of the key.

The events have the example's values. Held to it: ``ReplacingMergeTree(ver)`` with a column ``sign`` as it stands there,
with the row policy ``using sign != -1 to all``, and every other engine.
"""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.hand import Event, HandFed, key_change, mysql

pytestmark = pytest.mark.integration

OLD_C = (
    "20488251985-66135155553-00362235007-72249840112-70784105787-"
    "84584360668-65106023418-49140058226-99031281108-48426083028"
)
NEW_C = OLD_C[:-1] + "9"
PAD = "18846546959-44726413785-66695616247-63594911107-83062207348"
SOURCE = "id Int32, k Int32, c String, pad String"
TAIL = "PARTITION BY k ORDER BY (id, k) SETTINGS non_replicated_deduplication_window = 1000"
TABLES = {
    "as in the document": f"({SOURCE}, sign Int8, ver UInt64) ENGINE = ReplacingMergeTree(ver) {TAIL}",
    "wide version": f"({SOURCE}, sign Int8, ver UInt128) ENGINE = ReplacingMergeTree(ver) {TAIL}",
    "is_deleted": f"({SOURCE}, ver UInt128, is_deleted UInt8) ENGINE = ReplacingMergeTree(ver, is_deleted) {TAIL}",
    "collapsing": f"({SOURCE}, sign Int8) ENGINE = CollapsingMergeTree(sign) {TAIL}",
    "versioned": f"({SOURCE}, sign Int8, ver UInt128) ENGINE = VersionedCollapsingMergeTree(sign, ver) {TAIL}",
    "append": f"({SOURCE}, _op String, _sign Int8, _version UInt128) ENGINE = MergeTree {TAIL}",
}


def row(k: int, c: str, id_: int = 2317) -> dict[str, object]:
    return {"id": id_, "k": k, "c": c, "pad": PAD}


def key(k: int, id_: int = 2317) -> dict[str, int]:
    return {"id": id_, "k": k}


def events() -> list[Event]:
    """insert; ``update … set k=k+1 where id=2317``; an update of c; a second row, deleted."""
    created = mysql("c", key(3737), None, row(3737, OLD_C), 16_208_000)
    other = mysql("c", key(9, 1), None, row(9, "c", 1), 16_208_500)
    moved = key_change(
        mysql("d", key(3737), row(3737, OLD_C), None, 16_209_369),
        mysql("c", key(3738), None, row(3738, OLD_C), 16_209_369),
    )
    updated = mysql("u", key(3738), row(3738, OLD_C), row(3738, NEW_C), 16_210_729)
    deleted = mysql("d", key(9, 1), row(9, "c", 1), None, 16_211_000)
    return [created, other, *moved, updated, deleted, Event(key(9, 1), None)]


@pytest.mark.parametrize(("engine", "cut"), each_value(TABLES, [100, 1, 3]))
def test_the_sbtest_example(client: Client, database: str, own_tables: str, engine: str, cut: int) -> None:
    fed = HandFed(client, database, own_tables, TABLES[engine], ("id", "k"), policy_of(on_bad_record="fail"))
    fed.feed(events(), cut=cut)
    assert fed.view() == [(2317, 3738, NEW_C, PAD)]
    fed.merge()
    assert fed.view() == [(2317, 3738, NEW_C, PAD)]
    if engine in ("collapsing", "versioned"):
        sums = fed.query("SELECT id, k, toInt64(sum(sign)) AS s FROM {t} GROUP BY id, k HAVING s != 0")
        assert sums == [(2317, 3738, 1)]


def test_the_documents_row_policy_hides_deleted_rows(client: Client, database: str, own_tables: str) -> None:
    fed = HandFed(
        client, database, own_tables, TABLES["as in the document"], ("id", "k"), policy_of(on_bad_record="fail")
    )
    fed.feed(events(), cut=2)
    every = "SELECT id, k, c FROM {t} FINAL"
    assert len(fed.query(every)) == 3  # the delete rows of both old keys are newest there
    client.command(f"CREATE ROW POLICY sbtest ON {fed.name} USING sign != -1 TO ALL")
    try:
        assert fed.query(every, apply_row_policy_after_final=1) == [(2317, 3738, NEW_C)]
        # Merged: each deleted key is its delete row alone, and the policy needs no FINAL any more.
        fed.merge()
        assert fed.query("SELECT id, k, c FROM {t}") == [(2317, 3738, NEW_C)]
    finally:
        client.command(f"DROP ROW POLICY sbtest ON {fed.name}")


def test_deletes_repeat_the_old_values_and_get_a_higher_version(client: Client, database: str, own_tables: str) -> None:
    fed = HandFed(client, database, own_tables, TABLES["wide version"], ("id", "k"), policy_of(on_bad_record="fail"))
    fed.feed(events(), cut=1)
    found = fed.query("SELECT k, sign FROM {t} WHERE id = 2317 ORDER BY ver")
    assert found == [(3737, 1), (3737, -1), (3738, 1), (3738, 1)]
