"""A source table read by several processes at once: each turns some parts of it into rows of the shadow.

Turning texts into values costs more than reading them, and is Python's work; so processes share it, not threads. Parts
are smaller than a process's share, so that none waits for the others at the end. Each process has one batch in memory.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import wait as wait_for_end
from multiprocessing.synchronize import Event
from threading import Thread
from typing import TypeVar

from ch_sink.clickhouse import ClickHouseSettings, connect
from ch_sink.errors import StreamFailed
from ch_sink.model.address import grouped
from ch_sink.model.policy import Policy
from ch_sink.snapshot import DivisibleReader, Part, SourceAddress, open_source
from ch_sink.table.model import TargetTable
from ch_sink.trust.load import ROWS, snapshot_columns, store
from ch_sink.trust.stoppable import Check, never_stops, until_stopped
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema

__all__ = ["LEAST", "PARTS", "Filling", "load_parts", "still_wanted"]

T = TypeVar("T")

LEAST = 200_000
"""Rows below which one process is quicker than several that have to be started."""
PARTS = 4
"""Parts for each process."""
_LOOK = 0.2
"""Seconds between two looks whether the command is to stop."""
_over: Event | None = None
"""In a process of the pool: whether the pool is over."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What a process needs to fill the shadow with a part of the source."""

    address: SourceAddress
    server: ClickHouseSettings
    target: TargetTable
    shadow: TargetTable
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    schema: RowSchema | None
    policy: Policy
    version: int

    def fill(self, number: int, part: Part) -> int:
        """Store a part; returns its rows. Raises ChSinkError."""
        with closing(open_source(self.address)) as reader:
            assert isinstance(reader, DivisibleReader)
            chosen = snapshot_columns(self.target, self.columns, self.key, self.schema, self.policy, reader)
            batches = still_wanted(reader.part(part, [column.source for column in chosen], ROWS))
            return store(connect(self.server), self.shadow, chosen, batches, self.version, str(number))


def load_parts(
    filling: Filling,
    parts: Sequence[Part],
    processes: int,
    say: Callable[[str], None],
    check: Check = never_stops,
) -> int:
    """Store all parts; returns their rows. Raises ChSinkError, StreamFailed if a process dies."""
    total = 0
    # A forked process would share the sockets of this one.
    context = get_context("spawn")
    over, running = context.Event(), set[Future[int]]()
    with ProcessPoolExecutor(min(processes, len(parts)), context, _begin, (over,)) as pool:
        try:
            with _without_interrupts():
                running |= {pool.submit(filling.fill, number, part) for number, part in enumerate(parts)}
            while running:
                ended, running = wait(running, _LOOK, FIRST_COMPLETED)
                total += sum(future.result() for future in ended)
                if ended:
                    say(f"reading the source: {grouped(total)} rows, {len(parts) - len(running)} of {len(parts)} parts")
                check()
        except BrokenProcessPool:
            raise StreamFailed(
                "a process that read the source was killed",
                hint="It may have run out of memory; try again with --parallel 1.",
            ) from None
        finally:
            over.set()
            for future in running:
                future.cancel()
    return total


def _begin(over: Event) -> None:
    """What a process does first: it ends with the one that started it, however that ends."""
    global _over
    _over = over
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_end([sentinel])
    os._exit(1)


def still_wanted(batches: Iterable[T]) -> Iterator[T]:
    """The batches, in a process of the pool. Raises StreamFailed once nobody waits for them any more."""

    def check() -> None:
        if _over is not None and _over.is_set():
            raise StreamFailed("another process that read the source has failed", hint="Its error says why.")

    return until_stopped(batches, check)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started meanwhile do not get the terminal's Ctrl-C: this one gets it, too, and ends them."""
    resource_tracker.ensure_running()  # its start would let the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
