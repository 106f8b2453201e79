"""MongoDB: a number and the text that looks like it are never one row, whichever partitions they are in."""

from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.memory_fed import MemoryFed
from tests.support.mongodb import event

COLUMNS = (Column("_id", "String"), Column("document", "String"))


def fed(**choices: Any) -> MemoryFed:
    return MemoryFed(columns=COLUMNS, policy=policy_of(**choices))


def created(*ids: Any) -> list[Any]:
    return [event("c", one, {"_id": one}) for one in ids]


def test_partitions_of_different_kinds_stop_the_stream() -> None:
    stream = fed()
    stream.send(0, *created(1, 2))
    stream.send(1, *created("1"))
    with pytest.raises(StreamFailed, match="as _id numbers in partition 0 and texts in partition 1") as stopped:
        stream.batch(0, 1)
    assert "document.keys: typed" in (stopped.value.hint or "")
    stream.runner.kill()
    with pytest.raises(StreamFailed, match="numbers in partition 0"):
        stream.poll()


def test_a_partition_that_has_shown_no_kind_takes_that_of_the_others() -> None:
    """As within one partition, the kind that comes second is a dead letter."""
    stream = fed()
    stream.feed(1, *created("a name"))
    stream.feed(0, *created(1))
    stream.feed(1, *created("1", 2))
    assert [(p, o) for p, o, _ in stream.letters] == [(1, 1)]
    assert sorted(row["_id"] for row in stream.stream.table.current()) == [b"1", b"2", b"a name"]


def test_keys_that_state_their_kind_need_nothing() -> None:
    stream = fed(document_keys="typed")
    stream.send(0, *created(1))
    stream.send(1, *created("1"))
    stream.batch(0, 1)
    assert len(stream.stream.table.current()) == 2
