"""States between batches: floors of truncates and open swaps reach the changes that waited."""

from ch_sink.model.floor import Floor
from ch_sink.order import State
from ch_sink.stream.partition_states import States
from ch_sink.testing.memory_ledger import MemoryLedger


def states(partitions: int = 2) -> States:
    ledger = MemoryLedger("s")
    ledger.claim("run")
    return States(ledger, "id", partitions, None)


def test_a_truncate_holds_for_every_partition_and_what_waits_there() -> None:
    known = states()
    known.put(0, 10, State())
    known.truncated(Floor(0, 500, 7), "a")
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
