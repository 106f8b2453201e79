"""The numbered cases that a sink of changes has to get right: order and merging, small and by hand, in the real engine.

`tests.integration.test_case_index` tells where each number is tested.
"""

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.change import Floor
from ch_sink.order import State
from tests.support.choose import each_value
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    PLACEHOLDER,
    Event,
    Make,
    delete,
    each_collapsing,
    each_engine,
    insert,
    key,
    key_change,
    mysql,
    postgres,
    row,
    signs,
    update,
)
from tests.support.kills import Killed

pytestmark = pytest.mark.integration


@each_engine
def test_case_01_several_changes_of_a_key_in_one_transaction(make: Make, engine: str) -> None:
    """One binlog event, one millisecond: the Kafka offset orders them."""
    fed = make(engine)
    changes = [update(row(1, str(i)), row(1, str(i + 1)), 500, row=i) for i in range(4)]
    fed.feed([insert(1, "0", 500), *changes], cut=2)
    assert fed.view() == [(1, "4")]


@each_engine
def test_case_02_a_long_transaction_commits_after_newer_timestamps(make: Make, engine: str) -> None:
    """PostgreSQL: the late commit's lsn and time are lower, and it wins all the same."""
    fed = make(engine)
    early = postgres("u", key(1), None, row(1, "late commit"), 900, 150)
    assert early.value is not None
    early.value["source"]["ts_ms"] = 1  # type: ignore[index]
    fed.feed([postgres("c", key(1), None, row(1, "a"), 100, 90), postgres("u", key(1), None, row(1, "b"), 400, 300)])
    fed.feed([early])
    assert fed.view() == [(1, "late commit")]


@each_engine
def test_case_03_a_snapshot_row_does_not_outrank_the_first_update(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.feed([mysql("r", key(1), None, row(1, "old"), 154, snapshot="last", gtid=None)])
    fed.feed([update(row(1, "old"), row(1, "new"), 219, gtid="3e11fa47-71ca-11e1-9e33-c80aa9429562:1")])
    assert fed.view() == [(1, "new")]


@each_engine
def test_case_04_rotation_and_failover_to_lower_file_numbers(make: Make, engine: str) -> None:
    fed = make(engine)
    first = insert(1, "a", 4000)
    rotated = update(row(1, "a"), row(1, "b"), 4, file="mysql-bin.000004")
    failed_over = update(row(1, "b"), row(1, "c"), 4, file="binlog.000001")
    fed.feed([first, rotated, failed_over], cut=1)
    assert fed.view() == [(1, "c")]


@pytest.mark.parametrize(("inserts", "engine"), each_value([0, 1], ENGINES))
def test_case_05_a_crash_between_insert_and_commit(make: Make, engine: str, inserts: int) -> None:
    fed = make(engine, more="p Int32", tail="PARTITION BY p")
    fed.feed([insert(1, "a", 100, p=1), insert(2, "b", 110, p=2)])
    before = fed.states[0]
    fed.kill_after = inserts
    change = [
        update(row(1, "a", p=1), row(1, "c", p=2), 200),
        update(row(2, "b", p=2), row(2, "d", p=3), 210),
    ]
    with pytest.raises(Killed):
        fed.feed(change)
    fed.again(0, 2, 4, before)
    fed.again(0, 2, 4, before)
    assert fed.view() == [(1, "c", 2), (2, "d", 3)]
    if engine in COLLAPSING:
        assert signs(fed) == [(1, 1), (2, 1)]


@each_collapsing
def test_case_06_an_update_cancels_exactly_the_stored_row(make: Make, engine: str) -> None:
    """Whatever ``before`` says, or does not; the stored version is repeated."""
    fed = make(engine)
    fed.feed([insert(1, "a", 100)])
    stored = fed.query("SELECT id, v, toString(_version) FROM {t}")
    fed.feed([update(row(1, "not what is stored"), row(1, "b"), 200)])
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fed.feed([Event(key(1), {**dict(update(row(1, "b"), row(1, "c"), 300).value or {}), "before": None})])
    assert fed.view() == [(1, "c")]
    assert signs(fed) == [(1, 1)]
    assert fed.query("SELECT id, v, toString(_version) FROM {t} GROUP BY ALL HAVING sum(_sign) < 0") == []
    assert stored[0] not in fed.query("SELECT id, v, toString(_version) FROM {t} GROUP BY ALL HAVING sum(_sign) > 0")


@pytest.mark.parametrize(("cut", "engine"), each_value([1, 2, 3, 9], ENGINES))
def test_case_07_a_key_change_split_over_batches_and_back_again(make: Make, engine: str, cut: int) -> None:
    fed = make(engine)
    there = key_change(mysql("d", key(1), row(1, "a"), None, 200), mysql("c", key(2), None, row(2, "a"), 200))
    back = key_change(mysql("d", key(2), row(2, "a"), None, 300), mysql("c", key(1), None, row(1, "a"), 300))
    fed.feed([insert(1, "a", 100), *there], cut=cut)
    assert fed.view() == [(2, "a")]
    fed.feed(back, cut=cut)
    assert fed.view() == [(1, "a")]


@pytest.mark.parametrize(("cut", "engine"), each_value([1, 2, 3, 9], ENGINES))
def test_case_07_two_keys_swapped_in_one_transaction(make: Make, engine: str, cut: int) -> None:
    """A deferred constraint: the delete of key 2's former owner comes after the create of its new one."""
    fed = make(engine)
    fed.feed([postgres("c", key(i), None, row(i, v), 100, 90 + i) for i, v in ((1, "one"), (2, "two"))])
    first = key_change(
        postgres("d", key(1), None, None, 500, 410), postgres("c", key(2), None, row(2, "one"), 500, 410)
    )
    second = key_change(
        postgres("d", key(2), None, None, 500, 420), postgres("c", key(1), None, row(1, "two"), 500, 420)
    )
    fed.feed([*first, *second], cut=cut)
    assert fed.view() == [(1, "two"), (2, "one")]


@each_engine
def test_case_08_delete_and_insert_again_at_one_position(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.feed([insert(1, "a", 100), delete(row(1, "a"), 200), insert(1, "b", 200)])
    assert fed.view() == [(1, "b")]


@each_engine
def test_case_08_a_delete_delivered_twice_and_one_of_an_unknown_key(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.feed([insert(1, "a", 100), delete(row(1, "a"), 200)])
    fed.feed([delete(row(1, "a"), 200), delete(row(7, "?"), 300)])
    assert fed.view() == []
    if engine in COLLAPSING:
        assert [total for _, total in signs(fed) if total] == []


@each_engine
def test_case_08_a_delete_whose_sorting_columns_are_not_in_the_key(make: Make, engine: str) -> None:
    """PostgreSQL's default identity tells the key only: the place comes from the stored row."""
    fed = make(engine, more="place Int32", order="id, place")
    fed.feed([postgres("c", key(1), None, row(1, "a", place=7), 100, 90)])
    fed.feed([postgres("d", key(1), row(1, None, place=0), None, 200, 190)])
    assert fed.view() == []


@each_engine
def test_case_09_the_placeholder_from_the_chunk_and_from_the_table(make: Make, engine: str) -> None:
    fed = make(engine, more="n Int32")
    fed.feed(
        [
            postgres("c", key(1), None, row(1, "big", n=0), 100, 90),
            postgres("u", key(1), None, row(1, PLACEHOLDER, n=1), 200, 190),
        ]
    )
    assert fed.view() == [(1, "big", 1)]
    fed.feed([postgres("u", key(1), None, row(1, PLACEHOLDER, n=2), 300, 290)])
    assert fed.view() == [(1, "big", 2)]


@each_engine
def test_case_09_a_moved_row_takes_its_value_along_over_partitions(make: Make, engine: str) -> None:
    """The create half lies on another partition and is read first: it waits."""
    fed = make(engine)
    fed.feed([postgres("c", key(1), None, row(1, "big"), 100, 90)], partition=0)
    delete_half, tombstone, create_half = key_change(
        postgres("d", key(1), None, None, 200, 190), postgres("c", key(2), None, row(2, PLACEHOLDER), 200, 190)
    )
    fed.feed([create_half], partition=1)
    fed.feed([delete_half, tombstone], partition=0)
    # By now another row lives under the old key.
    fed.feed([postgres("c", key(1), None, row(1, "someone else"), 300, 290)], partition=0)
    fed.drain()
    assert fed.view() == [(1, "someone else"), (2, "big")]


@each_engine
def test_case_10_a_truncate_between_inserts_of_one_batch(make: Make, engine: str) -> None:
    fed = make(engine)
    truncate = mysql("t", None, None, None, 200)
    fed.feed([insert(1, "a", 100), insert(2, "b", 110), truncate, insert(2, "c", 300)])
    assert fed.view() == [(2, "c")]
    if engine in COLLAPSING:
        assert [total for _, total in signs(fed)] in ([0, 1], [1])


def test_case_10_a_late_row_from_below_the_truncate_is_dropped(make: Make) -> None:
    fed = make("replacing")
    fed.feed([mysql("c", key(9), None, row(9, "x"), 50)], partition=1)
    fed.feed([insert(1, "a", 100), mysql("t", None, None, None, 200)], partition=0)
    fed.feed([insert(5, "late", 150), insert(6, "after", 250)], partition=1)
    assert fed.view() == [(6, "after")]


def test_case_10_a_waiting_change_below_the_truncate_is_dropped(make: Make) -> None:
    fed = make("replacing")
    fed.feed([postgres("c", key(1), None, row(1, "big"), 100, 90)], partition=0)
    delete_half, _, create_half = key_change(
        postgres("d", key(1), None, None, 200, 190), postgres("c", key(2), None, row(2, PLACEHOLDER), 200, 190)
    )
    fed.feed([create_half], partition=1)
    fed.feed([postgres("t", None, None, None, 300, 290)], partition=2)
    fed.feed([delete_half], partition=0)
    fed.drain()
    assert fed.view() == []
    assert sum(sink.waiting for sink in fed.sinks.values()) == 0


def test_case_10_a_truncate_sent_again_on_another_partition(make: Make) -> None:
    """Its null key gives it any partition: it is not a position regress there, and deletes nothing that came later."""
    fed = make("replacing")
    truncate = mysql("t", None, None, None, 200)
    fed.feed([insert(1, "a", 100), truncate, insert(2, "b", 300)], partition=0)
    fed.feed([insert(3, "c", 400), truncate, insert(4, "d", 500)], partition=1)
    assert fed.view() == [(2, "b"), (3, "c"), (4, "d")]
    assert {state.epoch for state in fed.states.values()} == {0}


@each_engine
def test_case_14_a_table_without_a_key_is_refused_by_engines_that_need_one(make: Make, engine: str) -> None:
    fed = make(engine)
    with pytest.raises(StreamFailed, match="carry no key"):
        fed.feed([mysql("c", None, None, row(1, "a"), 100)])


@each_engine
def test_case_16_more_rows_of_a_key_in_a_chunk_and_many_partitions(make: Make, engine: str) -> None:
    fed = make(engine, more="p Int32", tail="PARTITION BY p")
    created = [insert(i, "a", 100 + i, p=i % 150) for i in range(300)]
    moved = [update(row(i, "a", p=i % 150), row(i, "b", p=(i + 1) % 150), 1000 + i) for i in range(0, 300, 3)]
    fed.feed([*created, *moved])
    want = [(i, *(("b", (i + 1) % 150) if i % 3 == 0 else ("a", i % 150))) for i in range(300)]
    assert fed.view() == sorted(want, key=repr)


@each_engine
def test_one_lookup_per_chunk_and_only_where_it_is_needed(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.feed([insert(i, "a", 100 + i) for i in range(20)])
    assert fed.lookups == (1 if engine in COLLAPSING else 0)
    fed.feed([postgres("u", key(i), None, row(i, PLACEHOLDER), 10**15 + i, 10**15) for i in range(20)])
    assert fed.lookups == (2 if engine in COLLAPSING else 1)


def test_a_state_survives_its_text() -> None:
    state = State(doubled={"00ff": "1f"}, floors={"s": Floor(1, 1 << 79, 1 << 127)}, alone=True)
    assert State.from_json(state.to_json()) == state
