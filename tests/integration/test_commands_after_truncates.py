"""Commands on a table that the source has truncated: nothing of before comes back."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.support.hand import Event, insert, key, mysql, postgres, row
from tests.support.hand_commands import MARKING, Hand, each_of, hand
from tests.support.hand_steps import LACKS, empty, expect_refused

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), mysql("t", None, None, None, 120), insert(3, "c", 130)]


def truncated(client: Client, database: str, engine: str, *parts: list[Event]) -> Hand:
    it = hand(client, database, engine, *parts, truncate="apply")
    it.read_all()
    assert it.view() == [(3, "c")]
    return it


@each_of("engine", ("replacing", "sign"), "replacing")
def test_a_partition_that_has_lost_the_truncate_of_anothers_rows(client: Client, database: str, engine: str) -> None:
    """The truncate was in a partition that no longer holds it, and the rows' events are in one that does."""
    it = truncated(client, database, engine, EVENTS[2:], EVENTS[:2])
    it.feed.records = {0: it.feed.records[0].slice(1, 2), 1: it.feed.records[1]}
    assert it.verify() == (0, 0, 0)
    repaired(it.subject, Options(patience=0), apply=True)
    assert it.view() == [(3, "c")]


@pytest.mark.parametrize("partitions", [1, 2])
@each_of("engine", MARKING, "replacing")
def test_a_table_is_emptied_after_a_transaction_that_truncated_and_filled_it(
    client: Client, database: str, engine: str, partitions: int
) -> None:
    before = [postgres("c", key(1), None, row(1, "a"), 5, 10)]
    truncate = [postgres("t", None, None, None, 20, 21)]
    after = [postgres("c", key(i), None, row(i, "b"), 20, 20 + i) for i in (2, 3)]
    parts = [[*before, *truncate, *after]] if partitions == 1 else [[*before, *truncate], after]
    it = hand(client, database, engine, *parts, truncate="apply")
    it.read_all()
    it.read_all()
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == [(2, "b"), (3, "b")]


@each_of("engine", MARKING, "replacing")
def test_a_truncate_that_emptied_the_table_is_no_loss(client: Client, database: str, engine: str) -> None:
    """The row was stored by the truncate's own transaction."""
    events = [postgres("c", key(1), None, row(1, "a"), 20, 10), postgres("t", None, None, None, 20, 21)]
    it = hand(client, database, engine, events, truncate="apply")
    it.read_all()
    assert it.view() == []
    empty(it)  # of marks too
    it.read_all()
    assert it.view() == []
