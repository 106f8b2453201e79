"""Row policies as ``init`` makes them, on each engine that has a mark of deleted rows, as a reader under them sees it.

Applied after FINAL a policy hides what is deleted; applied before it (so does 26.1) it takes the
delete row away and the deleted row comes back; without FINAL old rows show until parts are merged.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client as Driver

from ch_sink.clickhouse import ClickHouseTableAdmin, Client, run_statement, server_facts
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.wiring import table_spec
from ch_sink.errors import TableError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import ChangePolicy, policy_of
from ch_sink.table.checks import check_table
from ch_sink.table.ddl import create_row_policy, policy_name, row_policies
from ch_sink.table.facts import RowPolicy, ServerFacts
from tests.support.endpoint import settings_for
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    HandFed,
    Make,
    delete,
    each_collapsing,
    insert,
    key,
    postgres,
    row,
    update,
)
from tests.support.hand_commands import each_of
from tests.unit.discovery.test_obstacles import ROW, config
from tests.unit.discovery.test_obstacles import seen as seen_topic

pytestmark = pytest.mark.integration

LIVE = [(1, "b"), (4, "d")]
AFTER, BEFORE = {"apply_row_policy_after_final": 1}, {"apply_row_policy_after_final": 0}


@pytest.fixture
def reader(clickhouse: EmbeddedClickHouse) -> Iterator[Driver]:
    """A user in the role ``readers``."""
    driver = clickhouse_connect.get_client(host=clickhouse.host, port=clickhouse.port, settings={"role": "readers"})
    yield driver
    driver.close()


def under_a_policy(make: Make, engine: str, **layout: Any) -> HandFed:
    """Rows 1 to 4 inserted, 1 updated, 2 and 3 deleted, in parts of their own that nobody has merged."""
    fed = make(engine, **layout)
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    more = {"p": 0} if layout else {}
    fed.feed([insert(i, v, 100 + i, **more) for i, v in ((1, "a"), (2, "x"), (3, "y"), (4, "d"))])
    fed.client.command(create_row_policy(fed.table.database, fed.table.name, fed.table.engine, ["readers"]))
    moved = {"p": 1} if layout else {}
    fed.feed([update(row(1, "a", **more), row(1, "b", **moved), 200)])
    fed.feed([delete(row(2, "x", **more), 210), delete(row(3, "y", **more), 220)])
    return fed


def seen(reader: Driver, fed: HandFed, source: str, **settings: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(found)
        for found in reader.query(f"SELECT id, v FROM {source} ORDER BY id, v", settings=settings).result_rows
    ]


@pytest.fixture(autouse=True)
def no_policy_stays(client: Client, database: str) -> Iterator[None]:
    yield
    client.command(f"DROP ROW POLICY IF EXISTS {policy_name('t')} ON {database}.t")


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "replacing", "collapsing")
def test_after_final_the_reader_sees_what_lives(make: Make, engine: str, reader: Driver) -> None:
    fed = under_a_policy(make, engine)
    assert seen(reader, fed, f"{fed.name} FINAL", **AFTER) == LIVE
    assert seen(reader, fed, f"{fed.name}_current", **AFTER) == LIVE


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "sign", "versioned")
def test_before_final_deleted_rows_come_back(make: Make, engine: str, reader: Driver) -> None:
    """The trap itself, as it is; readers without a policy, and the view, stay right."""
    fed = under_a_policy(make, engine)
    assert {(2, "x"), (3, "y")} <= set(seen(reader, fed, f"{fed.name} FINAL", **BEFORE))
    assert fed.view() == LIVE


@pytest.mark.long
@each_of("engine", ENGINES, "replacing", "collapsing")
def test_without_final_old_rows_show_until_parts_are_merged(make: Make, engine: str, reader: Driver) -> None:
    fed = under_a_policy(make, engine)
    assert {(1, "a"), (2, "x")} <= set(seen(reader, fed, fed.name))
    fed.client.command(f"SYSTEM START MERGES {fed.name}")
    fed.merge()
    for setting in (AFTER, BEFORE):
        assert seen(reader, fed, fed.name, **setting) == LIVE
        assert seen(reader, fed, f"{fed.name} FINAL", **setting) == LIVE


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "sign", "versioned")
def test_rows_that_left_their_partition_stay_hidden(make: Make, engine: str, reader: Driver) -> None:
    fed = under_a_policy(make, engine, more="p Int32", tail="PARTITION BY p")
    own = {"do_not_merge_across_partitions_select_final": 1} if engine in COLLAPSING else {}
    assert seen(reader, fed, f"{fed.name} FINAL", **AFTER, **own) == LIVE
    assert seen(reader, fed, f"{fed.name}_current", **AFTER) == LIVE


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "replacing", "collapsing")
def test_the_sink_itself_is_not_bound(make: Make, engine: str, reader: Driver) -> None:
    """Its lookups see delete rows: an unavailable value of a row that was deleted and came again, and a late change."""
    fed = under_a_policy(make, engine)
    fed.feed([postgres("c", key(2), None, row(2, "again"), 10**15, 10**15)])
    fed.feed([delete(row(9, "?"), 10**6)])
    assert seen(reader, fed, f"{fed.name} FINAL", **AFTER) == [(1, "b"), (2, "again"), (4, "d")]


@pytest.mark.sampled(1)
@each_collapsing
def test_sums_of_signs_are_no_matter_of_readers_under_a_policy(make: Make, engine: str, reader: Driver) -> None:
    """−1 rows are hidden from them: a sum counts old rows too, until parts are merged."""
    fed = under_a_policy(make, engine)
    total = f"SELECT toInt64(sum(_sign)) FROM {fed.name}"
    assert reader.query(total).first_row[0] > 2
    assert fed.query(total) == [(2,)]


@pytest.mark.long
def test_init_replaces_a_policy_of_other_roles_or_another_engine(make: Make, reader: Driver) -> None:
    fed = make("sign")
    first = replace(fed.table.engine, is_deleted_column="_gone", sign_column=None)
    spec = table_spec(config())
    for engine, roles, done in (
        (first, ("others",), "created"),
        (first, ("others",), "unchanged"),
        (first, ("others", "readers"), "changed"),
        (fed.table.engine, ("others", "readers"), "changed"),
    ):
        [statement] = row_policies("t", engine, replace(spec, database=fed.table.database, row_policy_roles=roles))
        assert run_statement(fed.client, statement) == done
    fed.feed([insert(i, v, 100 + i) for i, v in ((1, "b"), (2, "x"), (4, "d"))])
    fed.feed([delete(row(2, "x"), 210)])
    assert seen(reader, fed, f"{fed.name} FINAL", **AFTER) == LIVE


@pytest.mark.parametrize(("condition", "wrong"), [("_gone = 0", 1), ("`_sign` != -1", 0), ("_sign != -1", 0)])
def test_check_tells_a_policy_of_another_engine(make: Make, condition: str, wrong: int) -> None:
    table = make("sign").table
    facts = ServerFacts("26.9", policies=(RowPolicy(policy_name("t"), condition), RowPolicy("own", "id > 0")))
    found = check_table(table, ["id"], ChangePolicy(), server=facts)
    assert [f.level for f in found if "is of another engine" in f.detail] == ["fail"] * wrong


def test_append_tables_get_no_policy(make: Make) -> None:
    fed = make("append")
    with pytest.raises(TableError, match="no row policy"):
        create_row_policy(fed.table.database, "t", fed.table.engine, ["readers"])


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "sign", "versioned")
@pytest.mark.parametrize("after_final", [False, True])
def test_check_tells_what_the_server_does(
    make: Make, engine: str, clickhouse: EmbeddedClickHouse, after_final: bool
) -> None:
    """As told by the server itself, under a profile that sets the one and the other."""
    fed = under_a_policy(make, engine)
    under = Client(settings_for(clickhouse.url, settings=(("apply_row_policy_after_final", str(int(after_final))),)))
    facts = server_facts(under, fed.table)
    under.close()
    # (The embedded engine gives every policy to its one user, which is a finding of its own.)
    told = " ".join(
        f"{f.level}: {f.detail}"
        for f in check_table(fed.table, ["id"], ChangePolicy(), server=facts)
        if f.title == "row policy"
    )
    assert ("readers see deleted rows again, also in `t_current`" in told) is not after_final
    assert ("ok: " in told) is after_final


def test_init_makes_no_policy_that_the_server_applies_before_final(clickhouse: EmbeddedClickHouse) -> None:
    under = Client(settings_for(clickhouse.url, settings=(("apply_row_policy_after_final", "0"),)))
    looked = seen_topic([(b'{"id":1}', ROW, None)])
    with pytest.raises(TableError, match=r"readers would see deleted rows again, also in t_current") as refused:
        plan_init(config(init={"row_policy_roles": ["readers"]}), looked, under)
    assert "init.row_policy_roles" in (refused.value.hint or "")
    under.close()


def test_a_stream_does_not_open_where_a_policy_binds_its_own_user(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t (id Int64, _sign Int8) ENGINE = CollapsingMergeTree(_sign) ORDER BY id")
    admin = ClickHouseTableAdmin(client, database, "t", policy_of())
    assert admin.detect()
    client.command(f"CREATE ROW POLICY some_rows ON {database}.t USING id > 5 TO ALL")
    try:
        with pytest.raises(TableError, match=r"row policy .* also binds the sink's own user default") as refused:
            admin.detect()
        assert "TO ALL EXCEPT `default`" in str(refused.value.hint)
    finally:
        client.command(f"DROP ROW POLICY some_rows ON {database}.t")
    assert admin.detect()
