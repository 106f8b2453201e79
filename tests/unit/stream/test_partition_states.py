"""States between batches: floors of truncates and open swaps reach the changes that waited."""

from ch_sink.model.change import Floor
from ch_sink.order import State
from ch_sink.ports import FinishedRange, RangeIntent
from ch_sink.stream.partition_states import States
from ch_sink.testing.memory_ledger import MemoryLedger


def states(partitions: int = 2) -> States:
    ledger = MemoryLedger("s")
    ledger.claim("run")
    return States(ledger, "id", partitions, None)


def test_a_truncate_holds_for_every_partition_and_what_waits_there() -> None:
    known = states()
    known.put(0, 10, State())
    known.truncated(Floor(0, 500, 7), "a", 501 << 32)
    assert known.at(0, 10).floors == known.at(1, 0).floors == {"a": Floor(0, 500, 7)}
    assert known.waiting(0).floors == known.waiting(1).floors == {"a": Floor(0, 500, 7)}


def test_a_swap_that_a_released_change_opened_stays_open() -> None:
    known = states()
    known.put(0, 10, State())
    known.released(0, State(doubled={"00": "0"}))
    assert known.at(0, 10).doubled == {"00": "0"}


def test_a_topic_of_one_partition_is_known_as_such() -> None:
    assert states(1).at(0, 0).alone
    assert not states(2).at(0, 0).alone


def ledger_of(*ends: int, epoch: int, partition: int = 0) -> MemoryLedger:
    """A ledger in which a partition's ranges end at these offsets."""
    ledger = MemoryLedger("s")
    ledger.claim("run")
    States(ledger, "id", 2, None)
    results = [FinishedRange("t", "id", partition, 0, end, state=State(base_epoch=epoch).to_json()) for end in ends]
    ledger.intents([RangeIntent("t", "id", partition, 0, max(ends))])
    ledger.results(results)
    return ledger


def test_a_lost_ledger_or_a_recreated_topic_begins_above_every_known_epoch() -> None:
    for topic_id, stored, epoch in (("id", 7, 3), ("new", None, 4), ("new", 7, 8), ("new", 2, 4)):
        known = States(ledger_of(10, epoch=3), topic_id, 2, stored)
        assert known.at(0, 10).epoch == epoch
    lost = MemoryLedger("s")
    lost.claim("run")
    assert States(lost, "id", 2, 7).at(0, 0).epoch == 8
    assert States(lost, "id", 2, 8).at(0, 0).epoch == 8  # its own rows
    fresh = MemoryLedger("s")
    fresh.claim("run")
    assert States(fresh, "id", 2, None).at(0, 0).epoch == 0


def test_changes_read_again_from_an_unknown_place_begin_above_every_known_epoch() -> None:
    """With a bare state all of them would lose to what they wrote at first."""
    ledger = ledger_of(10, 20, epoch=3)
    known = States(ledger, "id", 2, 3)
    assert known.at(0, 10).epoch == known.at(0, 20).epoch == known.at(0, 25).epoch == 3
    assert known.at(0, 5).epoch == 4
    # The next life, which finds rows of the first attempt, runs it with the same state.
    assert States(ledger, "id", 2, 4).at(0, 5).epoch == 4
    assert States(ledger_of(10, epoch=3), "id", 2, 9).at(0, 5).epoch == 10
    # Another partition is read for the first time.
    assert States(ledger_of(10, epoch=3), "id", 2, 3).at(1, 5).epoch == 0
