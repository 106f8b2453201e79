"""Keys that are written in other bytes move between partitions, and a DataFrame's batch may lack what came before."""

from dataclasses import replace

import pytest

from ch_sink.errors import StreamFailed
from tests.support.hand import Event
from tests.support.memory_fed import MemoryFed
from tests.unit.spark.test_frame_stream import Frames, change, door, shown

SCHEMA = {"type": "struct", "fields": [{"field": "id", "type": "int64", "optional": False}]}


def rewritten(key: int, big: str, at: int) -> Event:
    return replace(change(key, big, at), key={"schema": SCHEMA, "payload": {"id": key}})


def lagging() -> tuple[MemoryFed, Frames]:
    """Row 2 has moved to partition 0 with the new bytes of its key, and partition 1 has older changes of it unread."""
    fed, frames = door(offsets=True, partitions=2)
    fed.send(0, change(1, "a", 100))
    fed.send(1, *(change(2, f"old{i}", 200 + i) for i in range(6)))
    frames.apply(shown(fed, 0, 1, limit=3))
    fed.send(0, rewritten(2, "new", 400))
    return fed, frames


def test_a_batch_is_refused_while_older_changes_are_unread() -> None:
    fed, frames = lagging()
    with pytest.raises(StreamFailed, match=r"written in another form from offset 1 on, and .* may be unread") as found:
        frames.apply(shown(fed, 0, 1, limit=2))
    assert "`ch_sink run`" in (found.value.hint or "")
    frames.end()
    for _ in range(5):
        fed.poll()
    assert fed.view() == {1: "a", 2: "new"}


def test_a_batch_to_the_ends_is_applied_whole() -> None:
    fed, frames = lagging()
    frames.apply(shown(fed, 0, 1))
    frames.end()
    assert fed.view() == {1: "a", 2: "new"}
