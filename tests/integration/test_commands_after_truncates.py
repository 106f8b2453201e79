"""Commands on a table that the source has truncated: nothing of before comes back."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.mend import repaired
from ch_sink.trust.subject import Options
from tests.support.hand import Event, mysql
from tests.support.hand_commands import Hand, each_of, hand
from tests.support.hand_tables import insert

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
