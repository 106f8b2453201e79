"""Dead letters of before a table was filled anew: it has no marks of the rows that were deleted by then."""

import time

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.resync import resynced
from tests.support.hand import OWN, Event, delete, insert, row, update
from tests.support.hand_commands import MARKING, Hand, each_of, made
from tests.support.hand_steps import BIG, Rows, retried, widen

pytestmark = pytest.mark.integration

LOST, NEXT = insert(1, "a", 100, n=BIG), insert(2, "b", 120, n=7)


def filled(client: Client, database: str, engine: str, strategy: str, *events: Event) -> Hand:
    """The letter came right before the filling: by their clocks it may be newer than the rows."""
    clause, own = OWN[engine]
    chosen = policy_of(on_bad_record="dead_letter", version_strategy=strategy)
    it = made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [events])
    it.feed.records[0].timestamps[:] = int(time.time() * 1000)
    it.read_all()
    widen(it)
    it.source = Rows([(2, "b", 7)], types={"id": "bigint", "v": "varchar", "n": "bigint"})
    resynced(it.refill, apply=True)
    assert it.view() == [(2, "b")]
    return it


@each_of("engine", MARKING, "replacing")
@pytest.mark.parametrize("strategy", ["auto", "kafka_offset"])
def test_a_row_that_was_deleted_before_stays_deleted(client: Client, database: str, engine: str, strategy: str) -> None:
    """Nothing in the table tells: the source is to be asked. A letter from behind the filling is applied."""
    events = [LOST, delete(row(1, "a", n=7), 110), NEXT]
    it = filled(client, database, engine, strategy, *events)
    done = retried(it)
    assert (done.applied, list(done.failed)) == ([], [0])
    assert "filled again" in done.failed[0]
    assert it.view() == [(2, "b")]
    it.topic([*events, update(row(2, "b", n=7), row(2, "c", n="?"), 130), delete(row(2, "c", n=7), 140)])
    it.read_all()
    assert [x.letter.offset for x in it.feed.letters_of.list(10)] == [0, 3]
    assert it.view() == []
