"""What waiting changes cost: the work of a chunk follows what can move, not what waits."""

from typing import Any

from ch_sink.model.change import Records
from tests.support.hand import Event, postgres
from tests.support.waiting import FIRST, Stream, moved, row


class Counted:
    """A decoder that counts the records it decodes."""

    def __init__(self, inner: Any, counts: list[int]) -> None:
        self.inner, self.counts = inner, counts
        self.learn, self.key_forms = inner.learn, inner.key_forms

    def decode(self, records: Records, *given: Any, **named: Any) -> Any:
        self.counts.append(len(records))
        return self.inner.decode(records, *given, **named)


def counting(stream: Stream) -> list[int]:
    counts: list[int] = []
    decoders = stream.sinks[0].decoders
    make = decoders._make
    decoders._make = lambda before: Counted(make(before), counts)  # type: ignore[assignment,return-value]
    decoders._made.clear()
    return counts


def updates(key: int, count: int, at: int) -> list[Event]:
    return [postgres("u", {"id": key}, None, row(key, f"v{at + i}"), at + i, at + i - 10) for i in range(count)]


def test_a_chunk_does_not_plan_what_cannot_move() -> None:
    stream = Stream(FIRST)
    stream.feed(0, moved(7, 8, 200)[2], *updates(8, 500, 300))
    counts = counting(stream)
    stream.feed(0, *updates(9, 3, 1000))
    assert counts == [3]
    assert stream.sinks[0].waiting == 501


def test_a_new_process_plans_only_the_first_change_of_each_key() -> None:
    stream = Stream(FIRST)
    stream.feed(0, moved(7, 8, 200)[2], *updates(8, 500, 300))
    stream.alter(FIRST)  # the stream begins again, from the pending table
    counts = counting(stream)
    stream.feed(0, *updates(9, 3, 1000))
    stream.feed(0, *updates(9, 3, 1100))
    assert counts == [1, 3, 3]


def test_what_can_move_is_applied_with_all_behind_it_and_nothing_else() -> None:
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 7}, None, row(7, "seven"), 100, 90))
    stream.feed(0, moved(7, 8, 200)[2], *updates(8, 5, 300), moved(17, 18, 400)[2], *updates(18, 50, 500))
    stream.feed(1, moved(7, 8, 200)[0])
    counts = counting(stream)
    stream.feed(0, *updates(9, 3, 1000))
    assert counts == [6, 3]
    assert stream.sinks[0].waiting == 51
    assert {r["id"]: r["big"] for r in stream.current()} == {8: "v304", 9: "v1002"}


def test_a_change_that_moves_brings_the_values_of_another() -> None:
    """Row 1 becomes 2, then 3; both creates wait, the second one for the delete that waits behind the first."""
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90))
    on, further = moved(1, 2, 200), moved(2, 3, 300)
    stream.feed(0, further[2])
    stream.feed(0, on[2], further[0])
    assert stream.sinks[0].waiting == 3
    stream.feed(1, on[0])
    assert stream.retry().waiting == 0
    assert stream.current() == [{"id": 3, "big": "value", "extra": None}]
