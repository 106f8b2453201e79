"""The rows of the source, read into the shadow by one process or by several.

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
from ch_sink.errors import ConfigError, StreamFailed
from ch_sink.model.counts import grouped
from ch_sink.model.policy import Policy
from ch_sink.observe.logs import Step
from ch_sink.order import State
from ch_sink.snapshot import DivisibleReader, Part, SourceAddress, SourceReader, open_source
from ch_sink.table.model import TargetTable
from ch_sink.trust.load import ROWS, SnapshotColumn, expect_unique, lacking_columns, load, snapshot_columns, store
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.topic import Check, never_stops, until_stopped
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema


@dataclass(frozen=True, slots=True)
class ReadSource:
    """The result of reading a source table."""

    columns: tuple[Column, ...]
    """The columns of the table whose values the source gives."""
    passes: int
    """The source's position after the reading."""
    lacking: tuple[str, ...]
    """Columns of the source that the table lacks."""


def several_connectors(subject: Subject, topic_id: str) -> str:
    """A note that the source may be only one of the databases that the stream has met; else empty.

    One connector may have followed another, of the same database.
    """
    states = [State.from_json(total.state) for total in subject.ledger.totals() if total.topic_id == topic_id]
    names = sorted({name for state in states for name in (*state.names, *state.sources) if name})
    if len(names) < 2:
        return ""
    return (
        f"the stream has met events of the connectors {' and '.join(names[:5])}, and source.url names one database: if "
        "they read several, the rows of the others count as extra. Use --against topic then"
    )


def read_source(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    wanted: tuple[Column, ...],
    version: int,
    say: Callable[[str], None],
) -> ReadSource:
    """Fill the shadow with the source's rows.

    The rows get the version of what the stream had applied before they were read: every event from there on wins.
    Rows without a key cannot win: what an event touches from there on may be counted twice (`_drop_touched`).
    """
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source",
            hint="Add source.url, source.username and source.password, or compare --against topic.",
        )
    with closing(subject.source()) as reader:
        chosen = snapshot_columns(subject.table, wanted, subject.key, subject.schema, subject.settings.policy, reader)
        say("reading the source")
        rows = _load(subject, options, shadow, wanted, chosen, reader, version, say)
        passes = reader.position()
        lacking = lacking_columns(subject.table, subject.settings.policy, reader)
    if subject.key:
        expect_unique(subject.client, shadow, subject.key, rows)
    names = {*(column.table.name for column in chosen), *dict(shadow.added)}
    return ReadSource(tuple(column for column in wanted if column.name in names), max(passes, 1), lacking)


def _load(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    wanted: tuple[Column, ...],
    chosen: Sequence[SnapshotColumn],
    reader: SourceReader,
    version: int,
    say: Callable[[str], None],
) -> int:
    """Fill the shadow: by several processes, if the table is large and the source can be divided."""
    if options.bounds is not None and isinstance(reader, DivisibleReader):
        [column] = [one.source for one in chosen if one.table.name == subject.key[0]]
        batches = reader.part(reader.between(column, *options.bounds), [one.source for one in chosen], ROWS)
        return store(subject.client, shadow, chosen, until_stopped(batches, subject.check), version)
    processes = options.parallel or min(4, os.cpu_count() or 1)
    if processes > 1 and isinstance(reader, DivisibleReader) and (options.parallel or reader.estimate() >= LEAST):
        parts = reader.parts(processes * PARTS)
        if len(parts) > 1:
            policy = subject.settings.policy
            server, table = subject.client.settings, subject.table
            filling = Filling(
                reader.address, server, table, shadow, wanted, subject.key, subject.schema, policy, version
            )
            say(Step("reading the source", 0.0))
            return load_parts(filling, parts, processes, say, subject.check)
    return load(subject.client, shadow, chosen, reader, version, subject.check, say)


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
    """The work of one process: to fill the shadow with a part of the source."""

    address: SourceAddress
    server: ClickHouseSettings
    target: TargetTable
    shadow: TargetTable
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    schema: RowSchema | None
    policy: Policy
    version: int

    def fill(self, part: Part) -> int:
        """Store a part; returns its rows. Raises ChSinkError."""
        with closing(open_source(self.address)) as reader:
            assert isinstance(reader, DivisibleReader)
            chosen = snapshot_columns(self.target, self.columns, self.key, self.schema, self.policy, reader)
            batches = still_wanted(reader.part(part, [column.source for column in chosen], ROWS))
            return store(connect(self.server), self.shadow, chosen, batches, self.version)


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
                running |= {pool.submit(filling.fill, part) for part in parts}
            while running:
                ended, running = wait(running, _LOOK, FIRST_COMPLETED)
                total += sum(future.result() for future in ended)
                if ended:
                    done = len(parts) - len(running)
                    text = f"reading the source: {grouped(total)} rows, {done} of {len(parts)} parts"
                    say(Step(text, done / len(parts)))
                check()
        except BrokenProcessPool:
            raise StreamFailed(
                "a process that read the source was killed",
                hint="It may have run out of memory: try again with --parallel 1.",
            ) from None
        finally:
            over.set()
            for future in running:
                future.cancel()
    return total


def _begin(over: Event) -> None:
    """Let this process end when the one that started it ends, however that happens."""
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
            raise StreamFailed("another process that read the source failed", hint="Its error says why.")

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
