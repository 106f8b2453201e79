"""Tables whose versions are source times: changes of one moment tie, and the later one wins."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from tests.support.hand import PLACEHOLDER, WINDOW, HandFed, insert, key, postgres, row, update

pytestmark = pytest.mark.integration

each_kind = pytest.mark.parametrize("kind", ["DateTime", "DateTime('UTC')", "DateTime64(3)"])


@each_kind
@pytest.mark.parametrize("clause", ["PARTITION BY p ORDER BY id", "ORDER BY (p, id)", "ORDER BY (id, toDate(ver))"])
def test_a_table_whose_rows_can_leave_their_places_is_refused(
    client: Client, database: str, own_tables: str, kind: str, clause: str
) -> None:
    """A row and the mark at its former place have the same time."""
    columns = f"id Int64, v Nullable(String), p Int32, ver {kind}, gone UInt8"
    ddl = f"({columns}) ENGINE = ReplacingMergeTree(ver, gone) {clause} {WINDOW}, allow_suspicious_indices = 1"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    with pytest.raises(StreamFailed, match=r"has times as versions, and (p|ver) outside the key") as refused:
        fed.feed([insert(1, "a", 100, p=1)])
    assert "UInt128" in str(refused.value.hint)
    assert fed.query("SELECT count() FROM {t}") == [(0,)]


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
