"""Commands on a table that the source has truncated: nothing of before comes back."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.mend import repaired
from ch_sink.trust.replay import replayed
from ch_sink.trust.subject import Options
from tests.support.hand import Event, mysql
from tests.support.hand_commands import Hand, each_of, hand, made
from tests.support.hand_letters import BIG, widen
from tests.support.hand_tables import ENGINES, OWN, insert

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), mysql("t", None, None, None, 120), insert(3, "c", 130)]


def truncated(client: Client, database: str, engine: str, *parts: list[Event]) -> Hand:
    it = hand(client, database, engine, *parts, truncate="apply")
    it.read_all()
    assert it.view() == [(3, "c")]
    return it


@each_of("engine", ENGINES, "replacing", "collapsing")
@pytest.mark.parametrize("end", [1, 2, 3, 4])
def test_a_replay_of_what_lies_before_a_truncate(client: Client, database: str, engine: str, end: int) -> None:
    """The stream has read both at once, and never stored the rows: they have no mark."""
    it = truncated(client, database, engine, EVENTS)
    replayed(it.subject, {0: 0}, {0: end})
    assert it.view() == [(3, "c")]
    assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "sign")
def test_a_replay_of_a_dead_letter_of_before_a_truncate(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]
    chosen = policy_of(on_bad_record="dead_letter", truncate="apply")
    events = [insert(1, "a", 100, n=1), insert(2, "b", 110, n=BIG), *EVENTS[2:]]
    it = made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [events])
    it.read(*((0, end) for end in range(1, 5)))
    it.feed.letters_of.settle([(0, 1)], "dropped")
    widen(it)
    replayed(it.subject, {0: 0}, {0: 2})
    assert it.view() == [(3, "c")]


@each_of("engine", ("replacing", "sign"), "replacing")
def test_a_partition_that_has_lost_the_truncate_of_anothers_rows(client: Client, database: str, engine: str) -> None:
    """The truncate was in a partition that no longer holds it, and the rows' events are in one that does."""
    it = truncated(client, database, engine, EVENTS[2:], EVENTS[:2])
    it.feed.records = {0: it.feed.records[0].slice(1, 2), 1: it.feed.records[1]}
    assert it.verify() == (0, 0, 0)
    repaired(it.subject, Options(patience=0), apply=True)
    assert it.view() == [(3, "c")]


@each_of("engine", ENGINES, "replacing")
def test_a_replay_of_before_a_truncate_after_partitions_were_added(client: Client, database: str, engine: str) -> None:
    """Epochs of the replay and of the truncate may not compare: it reads on to what was applied."""
    it = truncated(client, database, engine, EVENTS)
    it.topic(EVENTS, [insert(4, "d", 140)])
    it.read_all()
    it.read_all()
    now = [(3, "c"), (4, "d")]
    assert it.view() == now
    done = replayed(it.subject, {0: 0, 1: 0}, {0: 2, 1: 0})
    assert done.ranges[0] == (0, 4)
    assert it.view() == now
    assert it.verify() == (0, 0, 0)
