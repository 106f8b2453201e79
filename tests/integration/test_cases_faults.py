"""The numbered cases of what goes wrong: a record, the table, the server's patience, the network; on every engine.

Neighbours are kept, nothing is skipped, and what stops the stream says so.
"""

from collections.abc import Iterator

import pytest

from ch_sink.clickhouse import Client, Retry
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.endpoint import settings_for
from tests.support.hand import COLLAPSING, ENGINES, Event, HandFed, Make, delete, insert, row, signs, update
from tests.support.proxy import FaultyProxy

pytestmark = pytest.mark.integration

LETTERS = policy_of(truncate="apply", on_bad_record="dead_letter")
every_engine = pytest.mark.parametrize("engine", [*ENGINES, "append"])


@pytest.fixture
def proxy(clickhouse: EmbeddedClickHouse) -> Iterator[FaultyProxy]:
    with FaultyProxy(clickhouse.url) as made:
        yield made


def through(fed: HandFed, proxy: FaultyProxy, **changes: object) -> Client:
    """Let the stream reach the server through the proxy."""
    fed.client = Client(settings_for(proxy.url, **changes))
    return fed.client


def exact(fed: HandFed, engine: str, want: dict[int, str]) -> None:
    """The table shows these rows; where signs are summed or every change is kept, each is there once."""
    assert fed.view() == sorted(want.items(), key=repr)
    if engine in COLLAPSING:
        assert dict(signs(fed)) == {i: int(i in want) for i in dict(signs(fed))}
        assert {i for i, total in signs(fed) if total} == set(want)
    if engine == "append":
        assert fed.query("SELECT count(), uniqExact(_version) FROM {t}")[0][0] == len(fed.log[0])


@pytest.mark.parametrize(("cut", "engine"), each_value([1, 3, 9], [*ENGINES, "append"]))
def test_case_15_a_poison_record_goes_aside_and_its_neighbours_stay(make: Make, engine: str, cut: int) -> None:
    """The value that no column holds, and the JSON that is none: dead letters with column and reason."""
    fed = make(engine, more="n Nullable(Int8)", policy=LETTERS)
    poison = update(row(2, "b"), row(2, "poison", n=1000), 200)
    done = fed.feed([insert(1, "a", 100, n=1), insert(2, "b", 110, n=2), poison, insert(3, "c", 300, n=3)], cut=cut)
    assert sum(one.counts.dead_letters for one in done) == 1
    assert fed.view() == [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    fed.feed([update(row(2, "b"), row(2, "healed", n=4), 400), delete(row(1, "a"), 410)])
    assert fed.view() == [(2, "healed", 4), (3, "c", 3)]
    letters = fed.client.rows(
        f"SELECT offset, column, reason, value FROM {fed.own}.dead_letters FINAL WHERE stream = {{s:String}}",
        {"s": f"hand/{fed.name}"},
    )
    assert [(found["offset"], found["column"]) for found in letters] == [(2, "n")]
    assert "1000" in letters[0]["reason"]
    assert "poison" in letters[0]["value"]


@every_engine
def test_case_15_a_table_that_goes_missing_stops_the_stream_where_it_is(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.feed([insert(1, "a", 100), insert(2, "b", 110)])
    before, changes = fed.states[0], [update(row(1, "a"), row(1, "c"), 200), delete(row(2, "b"), 210)]
    fed.client.command(f"RENAME TABLE {fed.name} TO {fed.name}_away")
    with pytest.raises(ClickHouseError, match="t") as caught:
        fed.feed(changes)
    assert caught.value.code == 60
    assert "init" in str(caught.value.hint)
    fed.client.command(f"RENAME TABLE {fed.name}_away TO {fed.name}")
    assert fed.states[0] is before
    fed.again(0, 2, 4, before)
    exact(fed, engine, {1: "c"})


@every_engine
def test_case_15_too_many_parts_slow_the_stream_down_and_lose_nothing(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    fed.feed([insert(1, "a", 100), insert(2, "b", 110)], cut=1)
    fed.client.command(f"ALTER TABLE {fed.name} MODIFY SETTING parts_to_delay_insert = 1, parts_to_throw_insert = 2")
    before, slow = fed.states[0], fed.client.slow_downs
    with pytest.raises(ClickHouseUnavailable, match="insert") as caught:
        fed.feed([update(row(1, "a"), row(1, "c"), 200)])
    assert caught.value.code == 252
    assert fed.client.slow_downs > slow
    fed.client.command(f"ALTER TABLE {fed.name} RESET SETTING parts_to_delay_insert, parts_to_throw_insert")
    fed.again(0, 2, 3, before)
    fed.client.command(f"SYSTEM START MERGES {fed.name}")
    exact(fed, engine, {1: "c", 2: "b"})


@pytest.mark.parametrize(
    ("fault", "engine"), each_value(["stall_answer", "drop_answer", "refuse"], [*ENGINES, "append"])
)
def test_case_15_a_time_out_behind_the_commit_stores_each_change_once(
    make: Make, engine: str, fault: str, proxy: FaultyProxy
) -> None:
    """The server has stored the block, and the client never hears of it: the repeat is dropped by its token."""
    fed = make(engine)
    through(fed, proxy, timeout=1.0)
    events: list[Event] = [insert(i, "a", 100 + i) for i in range(6)]
    events += [update(row(i, "a"), row(i, "b"), 200 + i) for i in range(4)]
    events += [delete(row(3, "b"), 300)]
    for start in range(0, len(events), 4):
        proxy.faults.append(fault)  # type: ignore[arg-type]
        fed.feed(events[start : start + 4])
    assert proxy.faults == []
    exact(fed, engine, {0: "b", 1: "b", 2: "b", 4: "a", 5: "a"})


@every_engine
def test_case_15_a_task_that_fails_behind_the_commit_is_run_again_exactly(
    make: Make, engine: str, proxy: FaultyProxy
) -> None:
    """No repeat reaches the server in time: the task fails, and the next attempt finds what was stored."""
    fed = make(engine)
    direct = fed.client
    fed.feed([insert(1, "a", 100), insert(2, "b", 110)])
    before = fed.states[0]
    through(fed, proxy, timeout=1.0, retry=Retry(1))
    proxy.faults.append("stall_answer")
    with pytest.raises(ClickHouseUnavailable, match="no answer within the time limit"):
        fed.feed([update(row(1, "a"), row(1, "c"), 200), delete(row(2, "b"), 210), insert(3, "d", 220)])
    fed.client = direct
    fed.again(0, 2, 5, before)
    exact(fed, engine, {1: "c", 3: "d"})
