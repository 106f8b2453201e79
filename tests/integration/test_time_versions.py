"""Tables whose versions are source times: changes of one moment tie, and the later one wins."""

from collections.abc import Mapping
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.testing import Killed
from tests.support.hand import PLACEHOLDER, HandFed, postgres
from tests.support.hand_tables import WINDOW, insert, key, row, update

pytestmark = pytest.mark.integration

Images = Mapping[str, Any] | None

each_kind = pytest.mark.parametrize("kind", ["DateTime", "DateTime('UTC')", "DateTime64(3)"])


def replacing(
    client: Client, database: str, own_tables: str, kind: str, *, order: str = "p, id", sign: bool = False
) -> HandFed:
    mark, named = ("_sign Int8", "") if sign else ("gone UInt8", ", gone")
    columns = f"id Int64, v Nullable(String), p Int32, ver {kind}, {mark}"
    engine = f"ReplacingMergeTree(ver{named}) PARTITION BY p ORDER BY ({order})"
    return HandFed(client, database, own_tables, f"({columns}) ENGINE = {engine} {WINDOW}", ("id",))


@each_kind
@pytest.mark.parametrize("last", [1, 3], ids=["back", "on"])
def test_no_place_keeps_a_row_that_moves_twice_in_one_moment(
    client: Client, database: str, own_tables: str, kind: str, last: int
) -> None:
    fed = replacing(client, database, own_tables, kind)
    fed.feed([insert(1, "a", 100, p=1)])
    a, b, c = row(1, "a", p=1), row(1, "b", p=2), row(1, "c", p=last)
    fed.feed([update(a, b, 200), update(b, c, 300)])
    assert fed.view() == [(1, "c", last)]


@pytest.mark.parametrize("sign", [False, True], ids=["mark", "sign"])
@pytest.mark.parametrize("order", ["p, id", "id"])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_row_is_found_at_its_new_place(
    client: Client, database: str, own_tables: str, first: int, second: int, order: str, sign: bool
) -> None:
    """The delete row at its former place has the same time. Events state what they change, and their key."""
    fed = replacing(client, database, own_tables, "DateTime64(3)", order=order, sign=sign)

    def fed_with(op: str, after: Images, second_of_minute: int) -> list[tuple[Any, ...]]:
        event = postgres(op, key(1), None, after, 10**15, 10**15 + second_of_minute)
        assert event.value is not None
        event.value["source"]["ts_ms"] = 1_657_655_600_000 + 1000 * second_of_minute
        fed.feed([event])
        return [found[:3] for found in fed.view()]

    assert fed_with("c", row(1, "a", p=first), 1) == [(1, "a", first)]
    assert fed_with("u", row(1, "b", p=second), 2) == [(1, "b", second)]
    assert fed_with("u", row(1, PLACEHOLDER, p=3), 3) == [(1, "b", 3)]
    assert fed_with("u", row(1, "c", p=first), 4) == [(1, "c", first)]
    fed.merge()
    assert fed_with("d", None, 5) == []


@each_kind
def test_a_chunk_is_applied_again_after_a_kill(client: Client, database: str, own_tables: str, kind: str) -> None:
    """What it has stored is found among its rows."""
    fed = replacing(client, database, own_tables, kind)
    fed.feed([insert(1, "a", 100, p=1)])
    start = fed.states[0]
    fed.kill_after = 1
    with pytest.raises(Killed):
        fed.feed([postgres("u", key(1), None, row(1, "b", p=2), 10**15, 10**15)])
    fed.again(0, 1, 2, start)
    assert fed.view() == [(1, "b", 2)]


@each_kind
def test_an_update_in_the_moment_of_the_row_before_reaches_a_collapsing_table(
    client: Client, database: str, own_tables: str, kind: str
) -> None:
    columns = f"id Int64, v Nullable(String), _version {kind}, _sign Int8"
    ddl = f"({columns}) ENGINE = CollapsingMergeTree(_sign) ORDER BY id {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    fed.feed([insert(1, "a", 100)])
    fed.feed([update(row(1, "a"), row(1, "b"), 200)])
    assert fed.view() == [(1, "b")]
    fed.feed([update(row(1, "b"), row(1, "c"), 300, ts_ms=1_657_655_640_000)])
    assert fed.view() == [(1, "c")]
    assert fed.query("SELECT sum(_sign) FROM {t}") == [(1,)]


@each_kind
def test_a_chunk_that_is_applied_again_does_not_bring_the_first_of_two_updates_back(
    client: Client, database: str, own_tables: str, kind: str
) -> None:
    """They are of one moment. A third one is looked up, so that the chunk gives other rows than before."""
    columns = f"id Int64, v Nullable(String), ver {kind}, gone UInt8"
    ddl = f"({columns}) ENGINE = ReplacingMergeTree(ver, gone) ORDER BY id {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    fed.feed([insert(1, "a", 100), insert(2, "long", 110)])
    start = fed.states[0]
    events = [
        postgres("u", key(1), None, row(1, "b"), 10**15, 10**15),
        postgres("u", key(1), None, row(1, "c"), 10**15, 10**15 + 1),
        postgres("u", key(2), None, row(2, PLACEHOLDER), 10**15, 10**15 + 2),
    ]
    fed.feed(events)
    fed.again(0, 2, 5, start)
    assert fed.view() == [(1, "c"), (2, "long")]


@each_kind
def test_a_row_that_has_moved_is_there_after_its_chunk_is_applied_again(
    client: Client, database: str, own_tables: str, kind: str
) -> None:
    fed = replacing(client, database, own_tables, kind)
    fed.feed([insert(1, "a", 100, p=1)])
    start = fed.states[0]
    events = [
        postgres("u", key(1), None, row(1, "b", p=1), 10**15, 10**15),
        postgres("u", key(1), None, row(1, "c", p=2), 10**15, 10**15 + 1),
    ]
    fed.feed(events)
    fed.again(0, 1, 3, start)
    assert fed.view() == [(1, "c", 2)]
