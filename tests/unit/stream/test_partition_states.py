"""States of partitions: epochs and names of sources."""

from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.model.change import Floor
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.ports import FinishedRange, RangeIntent, TruncateFloor
from ch_sink.stream.partition_states import States
from ch_sink.types.column import Column
from tests.support.hand import Event, mysql
from tests.support.memory_fed import MemoryFed
from tests.support.mongodb import event


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


@pytest.mark.parametrize(("stored", "shared", "epoch"), [(5, False, 6), (3, False, 3), (None, False, 3), (5, True, 3)])
def test_a_known_stream_goes_on_above_the_rows_of_another_writer(stored: int | None, shared: bool, epoch: int) -> None:
    ledger = ledger_of(10, epoch=3)
    for _ in range(2):  # its next life has rows of its own
        known = States(ledger, "id", 2, stored, shared=shared)
        known.rise_above_table()
        assert known.at(0, 10).epoch == epoch
        stored = epoch if stored == 5 else stored


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


COLUMNS = (Column("_id", "String"), Column("document", "String"))


def fed(**choices: Any) -> MemoryFed:
    return MemoryFed(columns=COLUMNS, policy=policy_of(**choices))


def created(*ids: Any) -> list[Any]:
    return [event("c", one, {"_id": one}) for one in ids]


def test_keys_that_state_their_kind_need_nothing() -> None:
    stream = fed(document_keys="typed")
    stream.send(0, *created(1))
    stream.send(1, *created("1"))
    stream.batch(0, 1)
    assert len(stream.stream.table.current()) == 2


HIGH, LOW = "mysql-bin.000900", "mysql-bin.000003"


def row(key: int, big: str) -> dict[str, object]:
    return {"id": key, "big": big}


def change(op: str, key: int, big: str, at: int, name: str, file: str, **more: Any) -> Event:
    return mysql(op, {"id": key}, None, row(key, big), at, name=name, file=file, **more)


def truncate(at: int, name: str, file: str) -> Event:
    return mysql("t", None, None, None, at, name=name, file=file)


def test_a_truncate_is_refused_where_the_partition_has_rows_of_another_source() -> None:
    fed = MemoryFed(partitions=1)
    fed.feed(0, change("c", 1, "a1", 100, "a", HIGH), change("c", 2, "b1", 100, "b", LOW))
    with pytest.raises(StreamFailed, match=r"truncate of source 'a' at offset 2 .* rows of 'b'"):
        fed.feed(0, truncate(200, "a", HIGH))
    assert fed.view() == {1: "a1", 2: "b1"}


@pytest.mark.parametrize("later", [False, True])
def test_a_truncate_is_refused_where_another_partition_has_rows_of_another_source(later: bool) -> None:
    """Also if these rows come in the same batch; and also in a later life."""
    fed = MemoryFed()
    fed.feed(0, change("c", 1, "a1", 100, "a", HIGH))
    fed.send(1, change("c", 2, "b1", 100, "b", HIGH))
    if later:
        fed.batch(1)
        fed.runner.kill()
    fed.send(0, truncate(200, "a", HIGH))
    with pytest.raises(StreamFailed, match="truncate of source 'a' at offset 1"):
        fed.batch(*([0] if later else [0, 1]))
    assert fed.view() == {1: "a1", 2: "b1"}


def test_a_truncate_is_refused_whatever_orders_the_changes() -> None:
    fed = MemoryFed(partitions=1, policy=policy_of(truncate="apply", version_strategy="kafka_offset"))
    fed.feed(0, change("c", 1, "a1", 100, "a", HIGH), change("c", 2, "b1", 100, "b", LOW))
    with pytest.raises(StreamFailed, match="truncate of source 'a'"):
        fed.feed(0, truncate(200, "a", HIGH))


@pytest.mark.parametrize("later", [False, True])
def test_a_truncate_is_refused_where_positions_have_stepped_back_in_one_partition_only(later: bool) -> None:
    """After a failover; also in a later life."""
    fed = MemoryFed()
    fed.feed(0, change("c", 1, "a", 100, "a", HIGH))
    fed.feed(0, change("c", 3, "c", 200, "a", LOW))
    fed.feed(1, change("c", 2, "b", 100, "a", LOW))  # where it has read nothing, nothing has stepped back
    if later:
        fed.runner.kill()
    fed.send(0, truncate(300, "a", LOW))
    with pytest.raises(StreamFailed, match=r"truncate cannot be applied.* 1 in partition 0, 0 in partition 1"):
        fed.batch(0)
    assert fed.view() == {1: "a", 2: "b", 3: "c"}


def test_a_truncate_is_applied_once_positions_have_stepped_back_everywhere() -> None:
    fed = MemoryFed()
    for p in (0, 1):
        fed.feed(p, change("c", p, "old", 100, "a", HIGH))
    fed.send(0, change("c", 2, "new", 200, "a", LOW), truncate(300, "a", LOW))
    fed.send(1, change("c", 3, "new", 200, "a", LOW), change("c", 5, "later", 400, "a", LOW))
    fed.batch(0, 1)
    assert fed.view() == {5: "later"}


def test_a_source_that_joins_after_a_truncate_keeps_its_changes() -> None:
    """Its positions are lower than that of the truncate, and its rows may have keys that were deleted by it."""
    fed = MemoryFed()
    fed.feed(0, change("c", 1, "a1", 100, "a", HIGH))
    fed.feed(1, truncate(200, "a", HIGH))
    fed.feed(0, change("c", 1, "b1", 100, "b", LOW), change("u", 1, "b2", 300, "b", LOW))
    assert fed.view() == {1: "b2"}
    assert [f.source for f in fed.stream.ledger.facts(TruncateFloor)] == ["a"]
    fed.feed(0, change("c", 4, "late", 150, "a", HIGH))  # the truncate of its own source came after it
    assert fed.view() == {1: "b2"}


def test_where_versions_are_times_a_change_beats_the_snapshot_row_that_was_read_after_it() -> None:
    """A row is read minutes after the position of its snapshot; the changes made meanwhile follow it in Kafka."""
    fed = MemoryFed(version="DateTime64(3, 'UTC')")
    fed.feed(1, change("r", 1, "old", 100, "a", LOW, ts_ms=900), change("r", 2, "gone", 100, "a", LOW, ts_ms=900))
    fed.runner.kill()
    fed.feed(1, change("u", 1, "new", 110, "a", LOW, ts_ms=300), change("d", 2, "", 120, "a", LOW, ts_ms=400))
    assert fed.view() == {1: "new"}
    fed.feed(1, change("r", 1, "snapshot again", 200, "a", LOW, ts_ms=2000))
    fed.feed(1, change("u", 1, "newest", 300, "a", LOW, ts_ms=1500), change("r", 2, "again", 310, "a", LOW, ts_ms=1000))
    assert fed.view() == {1: "newest", 2: "again"}


def test_times_of_several_partitions_do_not_tell_which_change_is_the_later_one() -> None:
    policy = policy_of(key_columns=("id",))
    fed = MemoryFed(version="DateTime64(3, 'UTC')", policy=policy)
    keyless = Event(None, change("r", 1, "old", 100, "a", LOW).value)
    with pytest.raises(StreamFailed, match="carry no key, so changes of a row may be in any of its partitions"):
        fed.feed(1, keyless)
    alone = MemoryFed(version="DateTime64(3, 'UTC')", policy=policy, partitions=1)
    alone.feed(0, keyless)
    assert alone.view() == {1: "old"}


@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_a_new_source_name_with_lower_positions_takes_over_and_the_ledger_says_so(engine: str) -> None:
    """The connector was made anew under another name, on a server with low file numbers; its topic is the same."""
    fed = MemoryFed(engine, partitions=1)
    fed.feed(0, change("c", 1, "old", 100, "a", HIGH))
    fed.feed(0, change("r", 1, "new", 100, "b", LOW), change("u", 1, "newer", 200, "b", LOW))
    fed.runner.kill()
    fed.feed(0, change("u", 1, "newest", 300, "b", LOW))
    assert fed.view() == {1: "newest"}
    steps = fed.stream.ledger.steps("id", 0)
    assert [(s.kind, s.source, s.offset) for s in steps] == [("new source", "b", 1)]
    assert steps[0].commit < steps[0].highest


def test_a_new_source_name_with_higher_positions_needs_nothing() -> None:
    fed = MemoryFed(partitions=1)
    fed.feed(0, change("c", 1, "old", 100, "a", LOW))
    fed.feed(0, change("u", 1, "new", 100, "b", HIGH))
    assert fed.view() == {1: "new"}
    assert fed.stream.ledger.steps("id", 0) == []


def test_what_is_said_of_a_new_source(caplog: pytest.LogCaptureFixture) -> None:
    fed = MemoryFed(partitions=1)
    fed.feed(0, change("c", 1, "old", 100, "a", HIGH), change("r", 1, "new", 100, "b", LOW))
    assert "source 'b' is new and begins at position" in caplog.text
    assert "its changes win" in caplog.text
