"""Each known trap of the engine's merges and inserts, with what the sink does about it.

| Trap | Test |
|---|---|
| equal versions in two partitions: FINAL takes the higher partition | equal_versions_in_two_partitions |
| a partition or sorting column changes: the old row would stay | `test_cases`: case_05, case_16 |
| +1 before −1 in one block cancels itself | plus_before_minus_in_one_block |
| an update whose old row was never stored ends at sum 0 | an_update_of_a_row_that_was_never_stored |
| versioned rows of equal versions cancel | versioned_rows_of_equal_versions_cancel |
| a token with other content is dropped | a_token_with_other_content_is_dropped |
| the window counts every insert of the table | more_inserts_than_the_window_holds |
| tokens hold per partition | a_token_holds_for_each_table_partition |
| TRUNCATE clears tokens, a reopened engine keeps them | tokens_are_cleared_by_truncate_and_kept_over_a_restart |
| several record batches in one body become several blocks | several_record_batches_in_one_body |
| a TTL on a column that a delete row fills with 1970 | a_ttl_on_a_column_that_a_delete_does_not_tell |
| a delete row in another partition than its row | a_ttl_on_a_column_that_a_delete_does_not_tell |
| argMax of a column skips null | argmax_of_a_column_skips_null |
| CoalescingMergeTree: an update to null leaves the old value | coalescing_keeps_the_old_value_under_null |
| a view made with `*` lacks columns added later | a_view_made_with_a_star |
| FINAL on a plain MergeTree is error 181 | final_on_a_plain_merge_tree |
| UInt128 comes as 16 bytes, little-endian | versions_come_as_sixteen_bytes |
| thousands of keys in one lookup | `tests/unit/clickhouse/test_lookup.py`: fifty_thousand_keys |
| no version column: the last inserted row wins | no_version_column |
| a row policy before FINAL brings deleted rows back | `test_policies` |
| removing delete rows early lets a late event come back | `tests/unit/table/test_checks.py`: findings (cleanup) |
| async_insert is on by default | an_acknowledged_insert_is_stored_and_merged_in_its_block |
| optimize_on_insert: fewer rows than were sent | an_acknowledged_insert_is_stored_and_merged_in_its_block |
| more than 100 partitions in one block are refused | `test_cases`: case_16 |
| retryable codes are read as numbers | `test_cases_faults`: case_15; `tests/unit/clickhouse/test_settings.py` |
"""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from ch_sink.clickhouse import ClickHouseWriter, Client, detect
from ch_sink.errors import ClickHouseError, StreamFailed, TableError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from tests.support.endpoint import settings_for
from tests.support.hand import (
    COLLAPSING,
    PLACEHOLDER,
    WINDOW,
    HandFed,
    Make,
    delete,
    each_collapsing,
    each_engine,
    insert,
    key,
    postgres,
    row,
    signs,
    update,
)
from tests.support.kills import Killed

pytestmark = pytest.mark.integration


def test_trap_equal_versions_in_two_partitions(make: Make) -> None:
    """The delete row and the row that moved differ in version, so FINAL does not depend on partitions' order."""
    for start, end in ((1, 2), (2, 1)):
        fed = make("replacing", more="p Int32", tail="PARTITION BY p")
        fed.feed([insert(1, "a", 100, p=start), update(row(1, "a", p=start), row(1, "b", p=end), 200)])
        assert fed.view() == [(1, "b", end)]
        assert fed.query("SELECT count() = uniqExact(_version) FROM {t}") == [(1,)]
        fed.client.command(f"DROP TABLE {fed.name}")


@each_collapsing
def test_trap_plus_before_minus_in_one_block(make: Make, engine: str) -> None:
    """All −1 rows stand before all +1 rows, else the engine cancels the new row against itself."""
    fed = make(engine)
    fed.feed([insert(i, "a", 100 + i) for i in range(50)])
    fed.feed([update(row(i, "a"), row(i, "b"), 200 + i) for i in range(50)])
    fed.merge()
    assert fed.view() == sorted(((i, "b") for i in range(50)), key=repr)
    assert signs(fed) == [(i, 1) for i in range(50)]


@each_collapsing
def test_trap_an_update_of_a_row_that_was_never_stored(make: Make, engine: str) -> None:
    """``snapshot.mode=no_data``: a before image is not a proof of a stored row."""
    fed = make(engine)
    fed.feed([update(row(1, "a"), row(1, "b"), 100), delete(row(2, "x"), 110)])
    assert signs(fed) == [(1, 1)]
    assert fed.view() == [(1, "b")]


def test_trap_versioned_rows_of_equal_versions_cancel(make: Make) -> None:
    """−1 has the stored version, +1 the new one."""
    fed = make("versioned")
    fed.feed([insert(1, "a", 100)])
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fed.feed([update(row(1, "a"), row(1, "b"), 200)])
    versions = fed.query("SELECT _sign, toString(_version) FROM {t} ORDER BY _version, _sign")
    assert [sign for sign, _ in versions] == [-1, 1, 1]
    assert versions[0][1] == versions[1][1] != versions[2][1]
    fed.client.command(f"SYSTEM START MERGES {fed.name}")
    fed.merge()
    assert fed.view() == [(1, "b")]


def test_trap_a_ttl_on_a_column_that_a_delete_does_not_tell(make: Make) -> None:
    """A 1970 in the TTL's column would make the delete row vanish, and the deleted row come back."""
    fed = make("replacing", more="day Date", tail="PARTITION BY toYYYYMM(day)", ttl="TTL day + INTERVAL 50 YEAR")
    today = 20_700  # days since 1970
    fed.feed([postgres("c", key(1), None, row(1, "a", day=today), 100, 90)])
    fed.feed([postgres("d", key(1), row(1, None, day=0), None, 200, 190)])
    assert fed.view() == []
    assert fed.query("SELECT uniqExact(day) FROM {t}") == [(1,)]
    # A delete row in another partition would be ignored here.
    assert fed.query("SELECT count() FROM {t} FINAL", do_not_merge_across_partitions_select_final=1) == [(0,)]


def test_trap_argmax_of_a_column_skips_null(make: Make) -> None:
    """A looked-up row is read whole: its null does not stand for a long value, nor does an earlier version fill it."""
    fed = make("replacing", more="n Int32")
    fed.feed([postgres("c", key(1), None, row(1, "big", n=0), 100, 90)])
    fed.feed([postgres("u", key(1), None, row(1, None, n=1), 200, 190)])
    with pytest.raises(StreamFailed, match="no earlier value of this row is known"):
        fed.feed([postgres("u", key(1), None, row(1, PLACEHOLDER, n=2), 300, 290)])
    assert fed.view() == [(1, None, 1)]


def test_trap_a_token_with_other_content_is_dropped(make: Make) -> None:
    """A second attempt of a collapsing table, whose content may differ, has tokens of its own."""
    fed = make("collapsing", more="p Int32", tail="PARTITION BY p")
    fed.feed([insert(1, "a", 100, p=1), insert(2, "a", 101, p=2)])
    before = fed.states[0]
    fed.kill_after = 1
    with pytest.raises(Killed):
        fed.feed([update(row(1, "a", p=1), row(1, "b", p=2), 200), update(row(2, "a", p=2), row(2, "b", p=1), 201)])
    fed.again(0, 2, 4, before)
    assert fed.view() == [(1, "b", 2), (2, "b", 1)]
    assert signs(fed) == [(1, 1), (2, 1)]


def newest_of_key(client: Client, table: str, ddl: str, *values: str) -> object:
    """What the engine itself shows of a key whose rows were inserted one after the other."""
    client.command(f"CREATE TABLE {table} {ddl}")
    for value in values:
        client.command(f"INSERT INTO {table} VALUES (1, {value})")
    [shown] = client.rows(f"SELECT v FROM {table} FINAL")
    return shown["v"]


def test_trap_coalescing_keeps_the_old_value_under_null(client: Client, database: str, own_tables: str) -> None:
    """So the table is refused."""
    ddl = f"(id Int64, v Nullable(String)) ENGINE = CoalescingMergeTree ORDER BY id {WINDOW}"
    assert newest_of_key(client, f"{database}.shown", ddl, "'old'", "NULL") == "old"
    with pytest.raises(TableError, match="Coalescing"):
        HandFed(client, database, own_tables, ddl, ("id",))


def test_trap_more_inserts_than_the_window_holds(make: Make) -> None:
    """Three tokens are remembered and five inserts repeated: the first are stored twice, as the engine forgets."""
    fed = make("append", window=3)
    writer = ClickHouseWriter(fed.client, fed.table)
    blocks = [(pa.table({"id": [i], "_sign": pa.array([1], pa.int8())}), f"token {i}") for i in range(5)]
    for _ in range(2):
        for rows, token in blocks:
            writer.write(Insert(rows, "all"), token)
    assert fed.query("SELECT count() FROM {t}") == [(10,)]


@pytest.mark.sampled(1)
@each_engine
def test_trap_a_second_attempt_behind_a_window_that_is_too_small(make: Make, engine: str) -> None:
    """Current-state engines do not rest on tokens alone: versions win or lose, signs are reconciled."""
    fed = make(engine, more="p Int32", tail="PARTITION BY p", window=2)
    fed.feed([insert(i, "a", 100 + i, p=i) for i in range(8)])
    before = fed.states[0]
    changes = [update(row(i, "a", p=i), row(i, "b", p=(i + 1) % 8), 200 + i) for i in range(7)]
    fed.feed([*changes, delete(row(7, "a", p=7), 300)], cut=3)
    fed.again(0, 8, 16, before)
    assert fed.view() == sorted(((i, "b", (i + 1) % 8) for i in range(7)), key=repr)
    if engine in COLLAPSING:
        assert {total for i, total in signs(fed) if i < 7} == {1}


def test_trap_a_token_holds_for_each_table_partition(make: Make) -> None:
    """One token of a block over two partitions: what a partition has is dropped there, and stored where it is not."""
    fed = make("append", more="p Int32", tail="PARTITION BY p")
    writer = ClickHouseWriter(fed.client, fed.table)
    one = pa.table({"id": [1], "p": pa.array([1], pa.int32())})
    both = pa.table({"id": [1, 2], "p": pa.array([1, 2], pa.int32())})
    for rows in (one, both, both):
        writer.write(Insert(rows, "all"), "the token")
    assert fed.query("SELECT id FROM {t} ORDER BY id") == [(1,), (2,)]


@pytest.mark.long
def test_trap_tokens_are_cleared_by_truncate_and_kept_over_a_restart(tmp_path: Path) -> None:
    with EmbeddedClickHouse(tmp_path / "data") as endpoint:
        one = Client(settings_for(endpoint.url))
        one.command("CREATE DATABASE d")
        one.command(f"CREATE TABLE d.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
        writer = ClickHouseWriter(one, detect(one, "d", "t", policy_of()))

        def stored_after_another_try() -> int:
            writer.write(Insert(pa.table({"id": [1]}), "all"), "the token")
            return int(one.rows("SELECT count() AS n FROM d.t")[0]["n"])

        assert stored_after_another_try() == 1
        endpoint.kill()
        endpoint.start()
        assert stored_after_another_try() == 1
        one.command("TRUNCATE TABLE d.t")
        assert stored_after_another_try() == 1
        one.close()


def test_trap_several_record_batches_in_one_body(make: Make) -> None:
    """A body of many batches becomes blocks as settings and time want, and a token would cover one of them."""
    fed = make("append")
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    pieces = [pa.table({"id": list(range(i * 1000, i * 1000 + 1000))}) for i in range(20)]
    rows = pa.concat_tables(pieces)
    assert rows.column("id").num_chunks == 20
    small = {"max_insert_block_size": 1000, "min_insert_block_size_rows": 1000, "max_insert_threads": 4}
    hostile = Client(replace(fed.client.settings, settings=tuple((k, str(n)) for k, n in small.items())))
    for client_ in (fed.client, hostile):
        ClickHouseWriter(client_, fed.table).write(Insert(rows, "all"), "the token")
    hostile.close()
    assert fed.query("SELECT count(), uniqExact(id) FROM {t}") == [(20_000, 20_000)]
    assert fed.query("SELECT uniqExact(_part) FROM {t}") == [(1,)]


def test_trap_a_view_made_with_a_star(make: Make) -> None:
    """Its columns are those of the day it was made; so the sink's view names them and is made anew."""
    fed = make("replacing")
    fed.client.command(f"CREATE VIEW {fed.name}_star AS SELECT * FROM {fed.name} FINAL")
    fed.client.command(f"ALTER TABLE {fed.name} ADD COLUMN w Nullable(String) AFTER v")
    assert "w" not in {column["name"] for column in fed.client.rows(f"DESCRIBE {fed.name}_star")}
    fed.look_again()
    fed.feed([insert(1, "a", 100, w="new")])
    assert fed.view() == [(1, "a", "new")]
    [shown] = fed.client.rows(f"SHOW CREATE TABLE {fed.name}_current")
    assert "*" not in str(shown)


def test_trap_final_on_a_plain_merge_tree(make: Make) -> None:
    """Error 181; the view of an append table takes each key's newest change instead."""
    fed = make("append")
    with pytest.raises(ClickHouseError) as caught:
        fed.query("SELECT * FROM {t} FINAL")
    assert caught.value.code == 181
    fed.feed(
        [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 200), insert(2, "x", 210), delete(row(2, "x"), 300)]
    )
    assert fed.view() == [(1, "b")]
    assert fed.query("SELECT count() FROM {t}") == [(4,)]


def test_trap_versions_come_as_sixteen_bytes(make: Make) -> None:
    """Little-endian: what is looked up compares as the numbers that the server shows."""
    fed = make("versioned")
    fed.feed([insert(1, "a", 2**31)])
    found = fed.fetch(pa.table({"id": [1]})).rows
    assert found.schema.field("_version").type == pa.binary(16)
    raw = found.column("_version")[0].as_py()
    assert fed.query("SELECT toString(_version) FROM {t}") == [(str(int.from_bytes(raw, "little")),)]


def test_trap_no_version_column(client: Client, database: str, own_tables: str) -> None:
    """The engine keeps the row that was inserted last, be it the older one: refused, unless written out."""
    ddl = f"(id Int64, v Nullable(String)) ENGINE = ReplacingMergeTree ORDER BY id {WINDOW}"
    assert newest_of_key(client, f"{database}.shown", ddl, "'new'", "'old'") == "old"
    with pytest.raises(TableError, match="version"):
        HandFed(client, database, own_tables, ddl, ("id",))


def test_trap_an_acknowledged_insert_is_stored_and_merged_in_its_block(make: Make) -> None:
    """``async_insert`` is on by default here, and rows of one key become one inside a block."""
    fed = make("replacing")
    assert fed.query("SELECT toInt8(getSetting('async_insert'))") == [(1,)]
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fed.feed([insert(1, "0", 100), *(update(row(1, "?"), row(1, str(i)), 100 + i) for i in range(1, 9))])
    assert fed.query("SELECT count(), any(v) FROM {t}") == [(1, "8")]
