"""A topic is deleted and created again while changes of the first one wait: none of them is forgotten."""

from typing import Any

import pytest

from ch_sink.model.policy import policy_of
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.memory_fed import NOTHING, MemoryFed


def change(op: str, key: int, big: str, at: int) -> Event:
    return postgres(op, {"id": key}, None, {"id": key, "big": big}, at, at - 10)


def moved(old: int, new: int, at: int) -> list[Event]:
    return key_change(postgres("d", {"id": old}, None, None, at, at - 10), change("c", new, PLACEHOLDER, at))


def recreated(fed: MemoryFed, *, dies: bool) -> None:
    fed.topic.topic_id = "id2"
    for p in (0, 1):
        fed.topic.partitions[p], fed.topic.ends[p], fed.read[p] = NOTHING, 0, 0
    if dies:
        fed.runner.kill()


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_changes_of_the_deleted_topic_are_given_up(engine: str, dies: bool, caplog: pytest.LogCaptureFixture) -> None:
    fed = MemoryFed(engine, policy=policy_of(truncate="apply"), topic_recreated="restart")
    fed.send(1, change("c", 1, "one", 100))
    fed.send(0, moved(1, 2, 200)[2], change("u", 2, "later", 300), moved(7, 8, 400)[2])
    fed.poll()
    assert len(fed.stream.pending) == 3
    recreated(fed, dies=dies)
    fed.send(0, change("r", 9, "nine", 900))
    fed.poll()
    assert len(fed.stream.pending) == 0
    assert fed.letters == [(0, 2, "unresolved")]  # a later image of its row makes the first one needless
    assert fed.view() == {1: "one", 2: "later", 9: "nine"}
    assert "3 changes of partition 0 of the former topic id no longer wait (dead letters: 1)" in caplog.text


def test_what_has_arrived_by_then_is_applied_and_loses_against_the_new_topic() -> None:
    fed: Any = MemoryFed(topic_recreated="restart")
    fed.send(1, change("c", 1, "one", 100))
    fed.send(0, moved(1, 2, 200)[2], moved(3, 4, 300)[2])
    fed.poll()
    handover = fed.stream.handover
    fed.send(1, moved(1, 2, 200)[0])
    fed.stream.handover.stored = stored = dict(handover.stored)
    fed.runner.coordinator.release = lambda **_: iter(())  # the job ends before it releases what has arrived
    fed.poll()
    assert len(stored) == 1
    recreated(fed, dies=True)
    fed.send(0, change("r", 4, "four", 50))
    fed.poll()
    assert fed.view() == {2: "one", 4: "four"}
    assert fed.letters == [(0, 1, "unresolved")]
