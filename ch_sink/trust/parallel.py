"""A source table read by several processes at once: each turns some parts of it into rows of the shadow.

Turning texts into values costs more than reading them, and is Python's work; so processes share it, not threads. Parts
are smaller than a process's share, so that none waits for the others at the end. Each process has one batch in memory.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context

from ch_sink.clickhouse import ClickHouseSettings, connect
from ch_sink.errors import StreamFailed
from ch_sink.model.counted import grouped
from ch_sink.model.policy import Policy
from ch_sink.snapshot import DivisibleReader, Part, SourceAddress, open_source
from ch_sink.table.model import TargetTable
from ch_sink.trust.load import ROWS, snapshot_columns, store
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema

__all__ = ["LEAST", "PARTS", "Filling", "load_parts"]

LEAST = 200_000
"""Rows below which one process is quicker than several that have to be started."""
PARTS = 4
"""Parts for each process."""


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
            batches = reader.part(part, [column.source for column in chosen], ROWS)
            return store(connect(self.server), self.shadow, chosen, batches, self.version, str(number))


def load_parts(filling: Filling, parts: Sequence[Part], processes: int, say: Callable[[str], None]) -> int:
    """Store all parts; returns their rows. Raises ChSinkError, StreamFailed if a process dies."""
    total = 0
    # A forked process would share the sockets of this one.
    with ProcessPoolExecutor(min(processes, len(parts)), mp_context=get_context("spawn")) as pool:
        running = [pool.submit(filling.fill, number, part) for number, part in enumerate(parts)]
        try:
            for done, future in enumerate(running, start=1):
                total += future.result()
                say(f"reading the source: {grouped(total)} rows, {done} of {len(parts)} parts")
        except BrokenProcessPool:
            raise StreamFailed(
                "a process that read the source was killed",
                hint="It may have run out of memory; try again with --parallel 1.",
            ) from None
        finally:
            for future in running:
                future.cancel()
    return total
