"""Deleted rows leave the disk where the ledger proves that no older change can come again.

A deleted row is kept as a mark, so that an older change of its key that arrives later does not bring it back. Within a
partition Kafka's order decides: a stretch that the connector sends again is recognised, or it begins a new epoch and
wins over the mark as well. So a mark matters only for changes that are stored under older versions: those of ranges
that are not finished, of waiting changes, and of dead letters that are retried. The bound lies below all of them.

Rows are removed in two steps, each of which may be broken off and repeated at any point: first what is below the mark,
while the mark stands, and then marks with nothing below them.

A running job purges the tables of its streams by itself: those that state ``purge_after``, once an hour.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ch_sink.clickhouse.lookup import max_version
from ch_sink.config import Config
from ch_sink.discovery.wiring import topic_offsets
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.merge.resolved import version_column
from ch_sink.model.counts import counted
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.order.version import to_int, to_words
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.alone import Commands
from ch_sink.trust.own_tables import (
    ALL_ROWS,
    OwnTables,
    count,
    delete_rows,
    mark_of,
    note_removed,
    own_tables,
    place_of,
)
from ch_sink.trust.repair_sql import counts
from ch_sink.trust.subject import Subject
from ch_sink.trust.wiring import subject_of
from ch_sink.types.sql import quote

_RESULTS = 10_000
"""Results of the ledger that are searched for those that have just been finished."""
SETTLE = 600.0
"""Seconds that a result must be old: a process that was frozen may still insert rows of a younger one."""


@dataclass(frozen=True, slots=True)
class Purged:
    """The rows that a purge removed, or would remove."""

    stream: str
    table: str
    applied: bool
    rows: int
    """Stored rows, the marks included."""
    bound: int
    """Only rows below this version were looked at; 0 if nothing can be purged."""
    note: str = ""
    """Why there is nothing to do, if it needs to be stated."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "applied": self.applied,
            "rows": self.rows,
            "bound": str(self.bound),
            "note": self.note,
        }


def purged(
    subject: Subject,
    own: OwnTables,
    until: Mapping[int, int],
    *,
    apply: bool,
    settle: float = SETTLE,
    say: Callable[[str], None] = lambda _: None,
) -> Purged:
    """Remove the rows that were deleted by changes below these offsets.

    Args:
        until: partition → offset; what is read from there on is too young.
        settle: seconds that a range must have been finished.

    Raises StreamFailed if it cannot be proved that no older change comes; ChSinkError.
    """
    table, name = subject.table, subject.table.qualified.replace("`", "")
    if table.engine.family.collapses:
        note = "a collapsing table keeps no deleted rows: its merges remove them"
        return Purged(subject.settings.name, name, apply, 0, 0, note)
    mark = _mark(table)
    topic = subject.topic.state(subject.settings.topic)
    _expect_settled(subject, own, topic)
    bound = _bound(subject, own, topic, until, settle)
    # The highest version of the stream's rows shows that the table is whole.
    bound = min(bound, max_version(subject.client, table, condition=subject.condition))
    if bound <= 0:
        note = "the ledger has no state of the stream that is old enough"
        return Purged(subject.settings.name, name, apply, 0, 0, note)
    gone = _gone(table, mark, bound, subject.condition)
    rows = count(subject.client, table, f"{_below(table, bound, subject.condition)} AND {gone}")
    if apply and rows:
        note_removed(subject.ledger, topic.topic_id, subject.reached(topic.topic_id).applied, bound - 1)
        for step in _steps(table, mark, bound, subject.condition):
            say(f"removing {counted(rows, 'row')} of {name}")
            delete_rows(subject.client, table.qualified, step)
    return Purged(subject.settings.name, name, apply, rows, bound)


def _mark(table: TargetTable) -> str:
    """The condition of a deleted row. Raises StreamFailed if the table has none that can be removed."""
    engine, what = table.engine, table.qualified
    if engine.family is Family.MERGE_TREE:
        raise StreamFailed(f"{what} keeps every change as a row: there are no rows to purge", hint="Use a TTL instead.")
    if table.distributed:
        raise StreamFailed(
            f"{what} is a Distributed table, and rows cannot be removed through it",
            hint="Purge each shard: name its local table as clickhouse.table.",
        )
    if engine.family is not Family.REPLACING or not (engine.is_deleted_column or engine.sign_column):
        raise StreamFailed(f"{what} does not mark deleted rows", hint="Create it with `ch_sink init`.")
    if not counts(table):
        raise StreamFailed(
            f"{what} has no versions that show whether an older change can still arrive",
            hint="Use a UInt128 version column, as `ch_sink init` does.",
        )
    return mark_of(table)


def _expect_settled(subject: Subject, own: OwnTables, topic: TopicState) -> None:
    """Raise StreamFailed if dead letters or former topics may store older changes."""
    ledger, name = subject.ledger, subject.settings.name
    mine = "stream = {stream:String}"
    letters = own.dead_letters.rows(
        f"SELECT count() AS n FROM $table FINAL WHERE {mine} AND retried IS NULL", stream=own.stream
    )
    if n := int(letters[0]["n"]):
        raise StreamFailed(
            f"{counted(n, 'dead letter')} of stream {name!r} can still be retried, under their old versions",
            hint="Settle them first: `ch_sink dead-letters retry` or `drop`.",
        )
    if ledger.topic_ids()[:1] != [topic.topic_id]:
        raise StreamFailed(
            f"stream {name!r} has not read topic {topic.topic} as it is now", hint="Run it first: `ch_sink run CONFIG`."
        )


def _bound(subject: Subject, own: OwnTables, topic: TopicState, until: Mapping[int, int], settle: float) -> int:
    """The version below which all changes were applied by results that are old enough, and none waits."""
    target = Target.of(subject.table, subject.settings.policy)
    applied = subject.reached(topic.topic_id).applied
    fresh = _finished_since(subject, topic.topic_id, time.time() - settle)
    limits: list[int] = []
    idle: list[int] = []
    for partition, high in topic.high.items():
        end = min(until.get(partition, 0), applied.get(partition, 0), fresh.get(partition, high))
        found = subject.ledger.state_before(topic.topic_id, partition, end)
        state = State.from_json(found[1]) if found is not None else State()
        lowest = _lowest(target, found[0] if found is not None else 0, state)
        # Nothing is unread, nothing came since: what was applied is all there is.
        everything = high <= topic.low[partition] or (found is not None and found[0] >= high)
        rests = everything and state.strategy in ("source_position", "")
        (idle if rests else limits).append(lowest)
    bound = min(limits) if limits else max(idle, default=0)
    waiting = own.pending.rows(
        "SELECT epoch, toString(commit_high) AS high, toString(commit_low) AS low FROM $table FINAL "
        "WHERE stream = {stream:String} AND resolved != 1 ORDER BY epoch, commit_high, commit_low LIMIT 1",
        stream=own.stream,
    )
    for row in waiting:
        bound = min(bound, _version(target, int(row["epoch"]), int(row["high"]) << 64 | int(row["low"]), 0))
    return bound


def _finished_since(subject: Subject, topic_id: str, moment: float) -> dict[int, int]:
    """Partition → where the first of the results begins that were finished later."""
    found: dict[int, int] = {}
    for result in subject.ledger.history(_RESULTS):
        if result.topic_id == topic_id and result.finished > moment and result.end > result.start:
            found[result.partition] = min(result.start, found.get(result.partition, result.start))
    return found


def _lowest(target: Target, offset: int, state: State) -> int:
    """No change behind this state has a version below this one, whichever source it is of."""
    if state.strategy != "source_position":
        return _version(target, state.base_epoch, offset, offset) if offset else 0
    places = [_version(target, s.epoch, s.commit, 0) for s in state.sources.values()]
    return min(places, default=0)


def _version(target: Target, epoch: int, commit: int, offset: int) -> int:
    words = target.layout.pack(
        np.array([epoch], dtype=np.int64),
        to_words([commit]),
        np.array([offset], dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        half=0,
    )
    return to_int(words, 0)


def _steps(table: TargetTable, mark: str, bound: int, mine: str) -> list[str]:
    """Conditions of the rows to remove, in order.

    The first one's subquery relies on marks, which that step leaves; the second one's on rows that are not marks.
    """
    below, key = _below(table, bound, mine), place_of(table)
    alone = f"{key} IN ({_keys(table, mark, bound, mine, f'countIf(NOT ({mark})) = 0')})"
    return [f"NOT ({mark}) AND {below} AND {_gone(table, mark, bound, mine)}", f"{mark} AND {below} AND {alone}"]


def _gone(table: TargetTable, mark: str, bound: int, mine: str) -> str:
    """The condition of the places whose newest row is a mark below the bound."""
    version = quote(version_column(table) or "")
    newest = f"maxIf({version}, {mark}) > maxIf({version}, NOT ({mark}))"
    return f"{place_of(table)} IN ({_keys(table, mark, bound, mine, newest)})"


def _keys(table: TargetTable, mark: str, bound: int, mine: str, having: str) -> str:
    """Places that have a mark, and no row above the bound, and meet a condition on their rows."""
    version, key, below = quote(version_column(table) or ""), place_of(table), _below(table, bound, mine)
    marked = f"SELECT {key} FROM {table.qualified} WHERE {mark} AND {below}"
    return (
        f"SELECT {key} FROM {table.qualified} WHERE {key} IN ({marked}) GROUP BY {key} "
        f"HAVING max({version}) < {_number(table, bound)} AND {having} {ALL_ROWS}"
    )


def _below(table: TargetTable, bound: int, mine: str) -> str:
    own = f" AND ({mine})" if mine else ""
    return f"{quote(version_column(table) or '')} < {_number(table, bound)}{own}"


def _number(table: TargetTable, bound: int) -> str:
    kind = next(c.type for c in table.columns if c.name == version_column(table))
    return f"to{kind}('{bound}')"


log = logging.getLogger("ch_sink")

EVERY = 3600.0
"""Seconds between two purges of a table."""
_FIRST = SETTLE + 60.0
"""Seconds after the start; what was finished later than `SETTLE` ago is not purged."""
_DAY = 86_400.0


def purge_stream(config: Config, *, apply: bool, say: Callable[[str], None] = lambda _: None) -> Purged:
    """Purge what was deleted longer ago than ``purge_after``, which the configuration states. Raises ChSinkError."""
    assert config.purge_after is not None
    bound = time.time() - config.purge_after
    if apply:
        # It keeps none from beginning: what begins later reads rows that lack these deletes' rows already.
        Commands.of(config).expect_none()
    with topic_offsets(config) as offsets:
        until = offsets.at_time(config.kafka.topic, int(bound * 1000))
        subject = subject_of(config)
        return purged(subject, own_tables(config, subject.client), until, apply=apply, say=say)


class Purging:
    """Purges in a thread of its own, one stream after the other."""

    def __init__(
        self,
        streams: Callable[[], Sequence[Config]],
        working: Callable[[], Collection[str]],
        purge: Callable[[Config], Purged] = lambda config: purge_stream(config, apply=True),
    ) -> None:
        """
        Args:
            streams: the configurations of the job's streams as they are now.
            working: names of the streams on which this job works now.
        """
        self._streams, self._working, self._purge = streams, working, purge
        self._said: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ch_sink purge", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a purge that runs is left to the server, which finishes or forgets it: both do no harm."""
        self._over.set()

    def step(self) -> None:
        """Purge the tables of the streams that state it. What fails is said, and tried again the next time."""
        try:
            due = [config for config in self._streams() if config.purge_after is not None]
        except ChSinkError as error:
            log.debug("purge: the files cannot be read: %s", error)
            return
        for config in due:
            if self._over.is_set():
                return
            if config.stream_name in self._working():
                self._one(config)

    def _one(self, config: Config) -> None:
        name = config.stream_name
        try:
            done = self._purge(config)
        except ChSinkError as error:
            if self._said.get(name) != error.message:
                log.warning("%s is not purged: %s", name, error.message, extra={"stream": name})
            self._said[name] = error.message
            return
        except Exception as error:  # noqa: BLE001 (the thread goes on with the other streams)
            log.warning("%s is not purged: %s: %s", name, type(error).__name__, error, extra={"stream": name})
            return
        self._said.pop(name, None)
        if done.rows:
            days = (config.purge_after or 0.0) / _DAY
            log.info(
                "%s: %s of %s, deleted more than %g days ago, were removed",
                name, counted(done.rows, "row"), done.table, round(days, 2), extra={"stream": name},
            )  # fmt: skip

    def _run(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            self.step()
            wait = EVERY
