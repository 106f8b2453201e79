"""Several source names in one topic: a truncate concerns its own source only, and a new name loses nothing silently."""

from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.ports import TruncateFloor
from tests.support.hand import Event, mysql
from tests.support.memory_fed import MemoryFed

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


def test_a_floor_of_an_earlier_version_holds_for_every_source() -> None:
    fed = MemoryFed()
    fed.feed(0, change("c", 1, "a1", 100, "a", HIGH))
    fed.runner.coordinator.ports.ledger.record(TruncateFloor(0, 1 << 79, 0))
    fed.runner.kill()
    fed.feed(0, change("c", 2, "a2", 200, "a", HIGH))
    assert fed.view() == {1: "a1"}


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
