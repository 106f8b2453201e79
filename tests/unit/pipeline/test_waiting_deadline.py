"""How long changes wait for a hand-over: each from when it began to, and never longer than what it waits for takes."""

from tests.support.hand import postgres
from tests.support.waiting import FIRST, Stream, moved, row


def test_a_change_is_given_up_by_its_own_time_and_not_by_an_older_ones() -> None:
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90))
    stream.feed(0, moved(7, 8, 200)[2])  # its delete half was never sent
    stream.now = 599.0
    stream.feed(0, moved(1, 2, 300)[2])
    stream.now = 601.0
    assert stream.retry().waiting == 1
    assert [(s.letter.offset, s.letter.kind) for s in stream.letters.list()] == [(0, "unresolved")]
    stream.feed(1, moved(1, 2, 300)[0])
    assert stream.retry().waiting == 0
    assert stream.current() == [{"id": 2, "big": "value", "extra": None}]
    assert len(stream.letters.list()) == 1


def test_what_came_behind_a_change_that_is_given_up_is_applied() -> None:
    stream = Stream(FIRST)
    stream.feed(0, moved(7, 8, 200)[2])
    stream.now = 500.0
    stream.feed(0, postgres("u", {"id": 8}, None, row(8, "whole"), 300, 290))
    stream.now = 601.0
    done = stream.sinks[0].retry_pending(stream.states[0], below=1 << 62)
    assert (done.counts.dead_letters, done.counts.kinds["released"], stream.sinks[0].waiting) == (1, 1, 1)
    assert stream.retry().waiting == 0
    assert stream.current() == [{"id": 8, "big": "whole", "extra": None}]


def test_a_hand_over_that_is_there_by_the_deadline_is_used() -> None:
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90))
    stream.feed(0, moved(7, 8, 200)[2], moved(1, 2, 300)[2])
    stream.feed(1, moved(1, 2, 300)[0])
    stream.now = 601.0
    done = stream.sinks[0].retry_pending(stream.states[0], below=1 << 62)
    assert (done.counts.dead_letters, done.counts.kinds["released"], stream.sinks[0].waiting) == (1, 2, 0)
    assert stream.current() == [{"id": 2, "big": "value", "extra": None}]
