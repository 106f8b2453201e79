"""Puts the events of a chunk into source order: versions, re-delivered stretches, position regress.

The rules (``docs/internals/ordering.md``, "Order"): within a partition an event whose commit position lies below the
highest one is either a re-delivery, proved by finding the very same record at an earlier offset, and skipped; or
a regress of the source's positions, and the epoch rises.

Where versions hold Kafka offsets, the offset alone orders the changes. Positions then only say, for sources whose keys
can be swapped, which changes belong to one transaction and which are re-deliveries (``follow``).

An event *at* the highest position is applied, with one exception: where inner positions are unique (PostgreSQL's
``lsn``) and step back, or every change counts, a proved re-delivery is skipped there too. Otherwise a stretch that
begins in mid-transaction, or with records that state no commit position, would be applied a second time to rows that
have changed since.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BackwardStep, ChangeBatch, Floor, Loaded, Op, Records
from ch_sink.model.policy import VersionPolicy
from ch_sink.order.positions import BackwardOrder, Work, forward
from ch_sink.order.redelivery import Seen
from ch_sink.order.state import Sequenced, SourceState, State, Trace
from ch_sink.order.version import Layout, Words, to_int
from ch_sink.ports import History


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that order a source's changes."""

    layout: Layout
    policy: VersionPolicy
    strategy: str
    """``source_position``, ``kafka_offset``, ``source_time`` or ``stated``."""
    follow: bool = False
    """Positions tell transactions and re-deliveries, though another strategy orders the events."""
    unique_inner: bool = False
    """The inner position (PostgreSQL's ``lsn``) is unique and rises within a transaction."""
    inner_is_log: bool = False
    """Positions of loaded rows compare with inner positions; else with commit positions."""
    counts: bool = False
    """Each change is a row of its own (append mode), so one that is sent again must not be applied again."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The records before a chunk, read only when a position steps back."""

    history: History | None = None
    decode: Callable[[Records], ChangeBatch] | None = None
    failed: Callable[[int, int], Collection[int]] | None = None
    """First offset, end → offsets of the records that became dead letters."""


def sequence(
    batch: ChangeBatch,
    records: Records,
    state: State,
    rules: Rules,
    earlier: Earlier = Earlier(),
    trace: Trace | None = None,
) -> Sequenced:
    """Versions for every event, and which events are re-deliveries."""
    if rules.strategy == "stated":
        return _stated(batch, state, rules)
    work = Work(batch, records, rules.unique_inner, rules.counts, trace)
    by_position = rules.strategy == "source_position"
    if len(batch) and state.uncounted and rules.strategy == "kafka_offset" and records.partition:
        raise StreamFailed(
            f"partition {records.partition} of {records.topic}: Kafka offsets order the changes, within one partition "
            "only, and without brokers it is unknown which changes of others are unread",
            hint="Name the brokers (kafka.bootstrap.servers). If the stream has applied changes without them, "
            "fill the table again then (`ch_sink resync CONFIG --apply`), since the topic has another id.",
        )
    if len(batch):  # a chunk without events says nothing about its source
        names = [batch.source_name[c] for c in np.unique(batch.source_code).tolist()]
        state = state.under(rules.strategy).met(names, batch.tables)
    sources: dict[str, SourceState] = {}
    for code, name in enumerate(batch.source_name if by_position or rules.follow else ()):
        mine = np.flatnonzero(batch.source_code == code)
        if not len(mine):
            continue
        start = _entry(state.with_sources(sources), name, batch, int(mine[0]), work.steps)
        done = forward(work, mine, start)
        if done is None or rules.counts:
            # Behind later changes, a history by offset has no place for a repeated dead letter: it stays one.
            letters = None if rules.counts and not by_position else earlier.failed
            # Elsewhere a change of a restored database that only lacks its twin's time must not be left out, and one
            # that is applied twice does no harm.
            timed = not (rules.counts and rules.unique_inner)
            scan = rules.policy.redelivery_scan
            seen = Seen(batch, records, earlier.history, earlier.decode, scan, letters, timed=timed)
            done = BackwardOrder(work, name, start, seen, alone=state.alone).run(mine)
        sources[name] = done
    epoch, commit = work.epoch, work.commit
    if not by_position:
        epoch[:], commit = state.base_epoch, by_offset(batch)
    out = ordered(batch, epoch, commit, state.with_sources(sources), rules.layout)
    out.transaction, out.trace = work.commit, trace
    out.keep, out.steps, out.skipped = work.keep, work.steps, work.skipped
    drop_truncated(batch, out, state)
    drop_loaded(batch, out, state.loaded, inner_is_log=rules.inner_is_log)
    return out


def _stated(batch: ChangeBatch, state: State, rules: Rules) -> Sequenced:
    """Versions from the numbers that the changes state, whatever their offsets are; all are of epoch 0.

    Half 0 is that of a delete: of one row and number the row that is there wins, in whatever order the two come.
    """
    epoch, number = np.zeros(len(batch), dtype=np.int64), batch.commit[:, 1].astype(np.int64)
    place = number if rules.layout.kind == "narrow" else np.zeros_like(number)
    out = ordered(replace(batch, offset=place), epoch, batch.commit, state, rules.layout)
    gone = batch.op == Op.DELETE
    out.version[gone] = out.leaving[gone]
    if len(batch):
        (name,) = batch.source_name
        known = state.of(name)
        top = replace(known, commit=max(known.commit, int(number.max())))
        out.state = state.under("stated").with_sources({name: top})
    return out


def by_offset(batch: ChangeBatch) -> Words:
    """The Kafka offsets as commit positions (n, 2)."""
    return np.column_stack([np.zeros(len(batch), dtype=np.uint64), batch.offset.astype(np.uint64)])


def _entry(state: State, name: str, batch: ChangeBatch, first: int, steps: list[BackwardStep]) -> SourceState:
    """The state of a source name before its event ``first`` of this batch.

    A new name may take over the rows of another one, whose positions say nothing about its own: if it begins below
    them, it begins a new epoch.
    """
    start = state.of(name)
    if name in state.sources:
        return start
    _, reached = state.highest_but(name)
    position = to_int(batch.commit, first)
    if position >= reached:
        return start
    steps.append(BackwardStep("new source", name, int(batch.offset[first]), position, reached))
    return SourceState(epoch=state.epoch + 1)


def drop_truncated(batch: ChangeBatch, order: Sequenced, state: State) -> None:
    """Drop what a truncate of the whole table supersedes: late changes of other partitions, and its re-deliveries.

    A truncate has no key, so the producer may pick a different partition on every delivery, and no earlier record
    proves a re-delivery.
    """
    for code, name in enumerate(batch.source_name):
        floor = state.floor_of(name)
        if floor.epoch or floor.commit:
            before = int(order.keep.sum())
            _drop_below(floor, batch, order, batch.source_code == code)
            if len(order.state.tables) > 1 and int(order.keep.sum()) < before:
                raise StreamFailed(
                    f"a truncate of source {name!r} was applied, and changes of before it come from "
                    f"{' and '.join(order.state.tables)}: nothing tells whether they were truncated",
                    hint="Give each source table a topic and a table of its own, and fill this one again with "
                    "`ch_sink resync CONFIG --apply`.",
                )


def drop_loaded(batch: ChangeBatch, order: Sequenced, loaded: Loaded, *, inner_is_log: bool) -> None:
    """Drop changes that the source had before its rows were loaded: the rows show them, or what came after them.

    PostgreSQL's inner positions order the log, and its commit positions do not: that of a transaction's change may be
    one of long before.
    """
    if not loaded.position:
        return
    position = batch.inner if inner_is_log else batch.commit
    high, low = np.uint64(loaded.position >> 64), np.uint64(loaded.position & 0xFFFFFFFFFFFFFFFF)
    below = (position[:, 0] < high) | ((position[:, 0] == high) & (position[:, 1] < low))
    stated = (position[:, 0] | position[:, 1]) != 0
    gone = order.keep & stated & below & (order.epoch <= loaded.epoch) & (batch.source_ts <= loaded.until)
    order.keep[gone] = False
    if gone.any():
        order.skipped["loaded"] += int(gone.sum())
        if order.trace is not None:
            for offset in batch.offset[gone].tolist():
                order.trace.note(offset, "loaded", "the source rows that were loaded before already showed it")


def _drop_below(floor: Floor, batch: ChangeBatch, order: Sequenced, mine: npt.NDArray[np.bool_]) -> None:
    at, position = floor.epoch, floor.commit
    low = np.uint64(position & 0xFFFFFFFFFFFFFFFF)
    commit = order.commit
    high = np.uint64(position >> 64)
    below = (commit[:, 0] < high) | ((commit[:, 0] == high) & (commit[:, 1] <= low))
    near = mine & order.keep & (order.epoch <= at) & (below | (order.epoch < at))
    for i in np.flatnonzero(near).tolist():
        here = Floor(int(order.epoch[i]), to_int(commit, i), to_int(batch.inner, i))
        if here < floor or (here == floor and batch.op[i] == Op.TRUNCATE):
            order.keep[i] = False
            order.skipped["truncated"] += 1
            if order.trace is not None:
                why = f"below a truncate at position {floor.commit} of epoch {floor.epoch}"
                order.trace.note(int(batch.offset[i]), "floor", why)


def ordered(
    batch: ChangeBatch,
    epoch: npt.NDArray[np.int64],
    commit: Words,
    state: State,
    layout: Layout,
) -> Sequenced:
    """Versions of events whose epochs and commit positions are known; all of them are kept.

    Times follow the order of the partition: none is below one before it. A snapshot's row has the time at which it was
    read, and is followed by changes that were made before that time and that it does not show.
    """
    times = batch.source_ts
    if layout.kind == "time" and len(batch):
        times = np.maximum.accumulate(np.maximum(times, state.latest))
        state = replace(state, latest=int(times[-1]))
    version = layout.pack(epoch, commit, batch.offset, times)
    leaving = layout.pack(epoch, commit, batch.offset, times, half=0)
    return Sequenced(np.ones(len(batch), dtype=np.bool_), epoch, commit, commit, version, leaving, state)


def strategy_for(policy: VersionPolicy, default: str, layout: Layout) -> str:
    """The strategy in force, from the policy, the source's default and what the version column can hold.

    Raises:
        StreamFailed: the configured strategy does not fit the version column.
    """
    wanted = policy.strategy
    fitting, hint = _FITTING[layout.kind]
    if wanted != "auto" and wanted not in fitting:
        raise StreamFailed(
            f"version.strategy: {wanted} does not fit a {layout.clickhouse_type} version column", hint=hint
        )
    if len(fitting) == 1:
        return fitting[0]
    return default if wanted == "auto" else wanted


_FITTING = {
    "wide": (("source_position", "kafka_offset"), "Leave version.strategy out, or use a DateTime64 column."),
    "narrow": (
        ("kafka_offset",),
        "Leave version.strategy out (kafka_offset is used there) or use a UInt128 column.",
    ),
    "time": (("source_time",), "Use version.strategy: source_time, or a UInt128 column."),
}
"""Of each kind of version column: the strategies that fit it, and what to do about others."""
