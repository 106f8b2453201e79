"""How the sink may come to its records: cuts into batches and chunks, interleavings, faults and retries."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.model.choose import chooser
from tests.model.history import History

Point = Literal["before_insert", "after_insert", "before_ledger"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition with start ≤ offset < end; may hold none."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The batch dies at one of its chunks and is run again from its beginning, the same ranges.

    ``before_insert``: the chunk was planned, nothing of it inserted; ``after_insert``: its first ``inserts``
    inserts were done (all, if it has fewer); ``before_ledger``: all of its inserts, but no result in the ledger.
    """

    chunk: int
    point: Point
    inserts: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks in the order of their carrying out: each partition's in offset order, partitions interleaved.

    ``faults`` strike one after the other, each in a run of the whole batch, before the run that ends well.
    """

    chunks: tuple[Chunk, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        out: dict[int, tuple[int, int]] = {}
        for chunk in self.chunks:
            start = out.get(chunk.partition, (chunk.start, 0))[0]
            out[chunk.partition] = (start, chunk.end)
        return out


def draw_plan(source: Any, history: History, *, faults: bool = True, aligned: bool = False) -> list[Batch]:
    """Batches that together cover every partition once, in order.

    ``aligned``: chunks end at multiples of one drawn size, as the product cuts them; else anywhere.
    """
    choose = chooser(source)
    total = sum(history.ends[p] - history.starts[p] for p in history.ends)
    size = choose.choice((max(1, total), 1, 2, 3, 5, 8, 13, 21))
    if total > 40:
        size = max(size, 2)
    queues: dict[int, list[Chunk]] = {}
    for partition, end in history.ends.items():
        at, queue = history.starts[partition], []
        while at < end:
            stop = (at // size + 1) * size if aligned else at + choose.integer(1, 2 * size)
            queue.append(Chunk(partition, at, min(stop, end)))
            at = queue[-1].end
        queues[partition] = queue
    order: list[Chunk] = []
    while any(queues.values()):
        order.append(queues[choose.choice([partition for partition, queue in queues.items() if queue])].pop(0))
    batches: list[Batch] = []
    while order:
        count = choose.integer(1, len(order)) if choose.chance(30) else choose.integer(1, min(6, len(order)))
        chunks, order = tuple(order[:count]), order[count:]
        struck = tuple(
            Fault(
                choose.integer(0, count - 1),
                choose.choice(("before_insert", "after_insert", "before_ledger")),
                choose.integer(1, 3),
            )
            for _ in range(choose.choice((0, 0, 0, 0, 0, 0, 1, 1, 2)) if faults else 0)
        )
        batches.append(Batch(chunks, struck))
    return batches
