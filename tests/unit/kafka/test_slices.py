"""Cuts depend on the records only, never on how they arrived."""

from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.kafka.slices import Slices
from ch_sink.model.change import Records


def _message(offset: int, size: int, headers: bool) -> Message:
    return Message(
        topic="t",
        partition=0,
        offset=offset,
        key=b"k",
        value=b"x" * size,
        headers=[("h", b"1")] if headers else None,
        timestamp=(1, offset * 10),
    )


@dataclass
class _Run:
    messages: list[Message] = field(default_factory=list)

    def slices(self, batch: int, max_records: int, max_bytes: int) -> list[Records]:
        slices = Slices("t", 0, max_records, max_bytes)
        out: list[Records] = []
        for first in range(0, len(self.messages), batch):
            out += slices.add(self.messages[first : first + batch])
        return out + list(slices.rest())


_records = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60), st.booleans()), min_size=1, max_size=200)


@given(_records, st.integers(0, 5000), st.integers(1, 130), st.integers(1, 3000), st.integers(1, 50))
def test_the_same_cuts_however_the_batches_fall(
    drawn: list[tuple[int, int, bool]], first: int, max_records: int, max_bytes: int, batch: int
) -> None:
    run, offset = _Run(), first
    for step, size, headers in drawn:
        run.messages.append(_message(offset, size, headers))
        offset += step
    one_by_one = run.slices(1, max_records, max_bytes)
    batched = run.slices(batch, max_records, max_bytes)
    assert [part.offsets.tolist() for part in batched] == [part.offsets.tolist() for part in one_by_one]
    assert [part.headers for part in batched] == [part.headers for part in one_by_one]
    flat = [
        (int(o), int(t), v, k)
        for p in batched
        for o, t, v, k in zip(p.offsets, p.timestamps, p.values, p.keys, strict=True)
    ]
    assert flat == [(m.offset(), m.timestamp()[1], m.value(), m.key()) for m in run.messages]
    assert [h for p in batched for h in (p.headers or [None] * len(p))] == [m.headers() for m in run.messages]
    for part in batched:
        assert len({int(offset) // max_records for offset in part.offsets}) == 1
        sizes = [len(cast(bytes, value)) + 1 for value in part.values]
        assert sum(sizes[:-1]) < 2 * max_bytes


def test_bytes_cut_at_a_64th_of_the_slice() -> None:
    run = _Run([_message(offset, 99, headers=False) for offset in range(10_000, 10_640)])
    parts = run.slices(100, 640, 2_450)
    # 24.5 records of 100 bytes are reached with the 25th; a 64th is ten offsets.
    assert [int(part.offsets[0]) for part in parts[:4]] == [10_000, 10_030, 10_060, 10_090]
    # 10,240 is a multiple of 640: a slice ends there whatever its bytes are.
    assert 10_240 in {int(part.offsets[0]) for part in parts}
