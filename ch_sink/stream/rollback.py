"""Whether ClickHouse is behind what the stream has stored: a restored backup, a lost replica, rows deleted by hand.

What tells that rows are missing is the highest version of the stream's rows: if it is below what the last results or
the last filling stored, the table was taken back and the ledger was not. Rows that a truncate, a purge or an erasure
removed do not count. A collapsing table gives no such evidence, since its rows go with their merges.

A ledger that was taken back together with its table shows where the table is, and the stream goes on from there. The
consumer group's offsets, which are committed after results, tell that this has happened. They do not tell whether the
table was taken back, too. That matters for a table that keeps each change: there, what the stream reads again is looked
up before it is stored, or the stream stops where that cannot be done.

A table that a command has filled may be ahead of its ledger, if the command was killed before it could record that. The
table's comment notes what is to be recorded.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import Policy
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.pipeline.target import Target
from ch_sink.ports import Claim, FinishedRange, Ledger, RowsEdited, TableRefilled, TruncateFloor
from ch_sink.stream.open_stream import OpenStream
from ch_sink.stream.ports import GroupOffsets, TableAdmin
from ch_sink.table.engine_full import removing_ttl
from ch_sink.table.model import Family, TargetTable

log = logging.getLogger("ch_sink")

_COMMIT_BITS = 80


class Restored:
    """Signs that the ledger, the table or the consumer group of a stream was restored, found when it is opened."""

    def __init__(self, stream: OpenStream) -> None:
        self._stream, self._ledger = stream, stream.ports.ledger
        self._topic, self._target = stream.topic, stream.table.target

    def expect_whole(self, group: GroupOffsets) -> None:
        """See whether ClickHouse lacks something.

        Raises:
            StreamFailed: the table lacks rows that the ledger has, or may have a history's rows that the ledger lacks
                and that cannot be looked up.
            LedgerConflict: another job has the stream by now.
        """
        self._compare_with(group)
        self._expect_known()
        self._expect_complete()

    def _expect_known(self) -> None:
        """Raises StreamFailed if a history has rows of which the ledger knows nothing, and the topic is read anew."""
        anew = self._stream.settings.start in ("ledger", "earliest") and self._target.appends
        if not anew or self._ledger.topic_ids() or not self._stream.table.has_rows():
            return
        self._ledger.check_claim()
        table = self._stream.table.now.qualified.replace("`", "")
        raise StreamFailed(
            f"{table} has rows, and the ledger has no entry of stream {self._stream.settings.name}: to read the topic "
            "from its start would store changes twice that are there",
            hint="Restore the table and the ledger together, or name a new table in clickhouse.table. If the rows are "
            "of other changes only, set start: latest.",
        )

    def _compare_with(self, group: GroupOffsets) -> None:
        """See whether the consumer group is ahead of the ledger's ends: the ledger was restored then."""
        topic_id, name = self._topic.topic_id, self._stream.settings.name
        ends = {t.partition: t.next_offset for t in self._ledger.totals() if t.topic_id == topic_id}

        def notice(committed: Mapping[int, int]) -> None:
            if behind := ahead(committed, ends):
                log.warning("%s: ClickHouse was restored to an older state; reading again: %s", name, behind)

        # Of a topic that was recreated, the group's offsets may be those of the former one.
        if len(self._ledger.topic_ids()) > 1 or not self._target.appends:
            group.before_commit(self._topic.topic, sorted(self._topic.low), notice)
            return
        committed = group.last_committed(self._topic.topic, sorted(self._topic.low))
        notice(committed)
        behind = ahead(committed, ends)
        if (behind and self._stream.table.has_rows()) or self._has_unknown():
            self._look_up(behind)

    def _has_unknown(self) -> bool:
        """Whether the table has newer rows than the ledger explains: by its last results, or ranges that were begun."""
        stored = self._stream.stored_version
        return stored is not None and stored > self._wanted.top and not self._ledger.open_intents(self._topic.topic_id)

    def _look_up(self, behind: str) -> None:
        """Look up what is read again of a history: the table may have it, if the ledger alone was taken back.

        Args:
            behind: how the consumer group shows that the ledger was taken back; empty if it does not.

        Raises:
            StreamFailed: it was, and changes cannot be found again in the table.
        """
        stream, totals = self._stream, self._ledger.totals()
        found = bool(totals) and self._target.system.version is not None and self._target.layout.kind != "time"
        epoch = stream.table.highest_epoch(stream.stored_version)
        # Behind a step of the epoch, changes that are read again have other versions.
        if found and (epoch is None or epoch <= stream.states.highest_epoch):
            stream.unsure = dict(self._topic.high)
        elif behind:
            self._ledger.check_claim()  # its successor's commits say nothing about ClickHouse
            raise StreamFailed(
                f"stream {stream.settings.name}: its ledger may be older than its table: {behind}",
                hint="To read on would store changes of the history twice: restore the table and the ledger together.",
            )

    def _expect_complete(self) -> None:
        stored = self._stream.stored_version
        if stored is None or not (lacks := self._wanted.lacking(self._target, stored)):
            return
        # A job that was frozen since it read the version compares an old answer with its successor's ledger.
        self._ledger.check_claim()
        raise StreamFailed(lacks, hint=_filled_again(self._stream.table.now, self._target.policy))

    @cached_property
    def _wanted(self) -> "_Wanted":
        return _Wanted.of(self._ledger, self._topic.topic_id, len(self._topic.low))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rows that the table has according to the ledger. Versions are −1 where there is none."""

    filled: int
    """The highest version of a living row of the table that took the stream's place last, −1 if it is unknown."""
    results: tuple[FinishedRange, ...]
    """The last ones since then."""
    removals: tuple[int, int]
    truncates: tuple[TruncateFloor, ...]

    @classmethod
    def of(cls, ledger: Ledger, topic_id: str, partitions: int) -> "_Wanted":
        fillings = {f.partition: f for f in ledger.facts(TableRefilled) if f.topic_id == topic_id}
        results = (r for r in ledger.history(4 * partitions) if r.topic_id == topic_id)
        since = tuple(r for r in results if r.partition not in fillings or r.end > fillings[r.partition].offset)
        tops = [int(f.top) for f in fillings.values() if f.top]
        return cls(max(tops, default=-1), since, _removals(ledger, topic_id), tuple(ledger.facts(TruncateFloor)))

    def lacking(self, target: Target, stored: int) -> str:
        """The lacking rows of a table whose highest version is ``stored``, in words; empty if nothing shows any."""
        if not _shows_losses(target) or self._is_in(stored, -1, -1) or self._is_in(stored, *self.removals):
            return ""
        table = target.table.qualified.replace("`", "")
        has = f"the highest version there is {stored}" if stored >= 0 else "it has none of them"
        return f"{table} lacks rows that the stream has stored: {has}, and the ledger has {self.top}"

    @property
    def top(self) -> int:
        return max(newest_stored(self.results, self.truncates), self.filled)

    def _is_in(self, stored_version: int, removed: int, left: int) -> bool:
        """Whether a table with this highest version has all of it.

        ``removed``: the highest version that was erased or purged; ``left``: the highest one beside it.
        """
        kept = _kept(self.truncates)
        filled = self.filled if self.filled > removed and self.filled >= kept else -1
        there = left if left >= kept else -1
        stored = newest_stored(self.results, self.truncates, max(removed, 0))
        return stored_version >= max(there, filled) and max(stored_version, 0) >= stored


def expect_same_table(
    last: Claim | None, ledger: Ledger, admin: TableAdmin, table: TargetTable, policy: Policy
) -> None:
    """See that a table without rows is the one that the stream has filled. A collapsing one may have none left.

    Args:
        last: the claim before, whose terms name that table: the next claim names this one.

    Raises:
        StreamFailed: it has the name of that one only, as after DROP and CREATE.
    """
    filled = last.terms.table if last is not None and last.terms is not None else ""
    if filled in ("", table.uuid) or admin.has_rows(table) or not any(t.counts.rows for t in ledger.totals()):
        return
    name = table.qualified.replace("`", "")
    raise StreamFailed(
        f"{name} lacks rows that the stream has stored: it is another table, and has none of them",
        hint=_filled_again(table, policy),
    )


def _filled_again(table: TargetTable, policy: Policy) -> str:
    # The source has no former changes, and rows without a key cannot be distinguished.
    against = " --against topic" if table.engine.family is Family.MERGE_TREE else ""
    fill = f"Fill the table again with `ch_sink resync CONFIG{against} --apply`"
    if policy.columns.source:
        fill = "Other topics have rows there, too: write the missing ones with `ch_sink repair CONFIG --apply`"
    return f"{fill}, then `ch_sink resume CONFIG`; or restore a newer backup."


def lacking(ledger: Ledger, target: Target, topic_id: str, partitions: int, stored: Callable[[], int]) -> str:
    """The rows of its stream that a table lacks, in words; empty if nothing shows that it lacks any.

    Args:
        partitions: how many the topic has.
        stored: asks for the highest version of the stream's rows, −1 if there are none; after the ledger was read, so
            that rows which a job stores meanwhile do not count as lost.
    """
    if not _shows_losses(target):
        return ""
    wanted = _Wanted.of(ledger, topic_id, partitions)
    return wanted.lacking(target, stored())


def expect_complete(ledger: Ledger, admin: TableAdmin, target: Target, topic_id: str, partitions: int) -> None:
    """Raises StreamFailed if the table lacks rows of the topic that the stream has stored."""
    if lacks := lacking(ledger, target, topic_id, partitions, lambda: admin.highest_version(target.table)):
        raise StreamFailed(lacks, hint=_filled_again(target.table, target.policy))


def newest_stored(results: Iterable[FinishedRange], truncates: Iterable[TruncateFloor], removed: int = 0) -> int:
    """The highest version that these results stored and nothing removed; 0 if none is known.

    ``removed``: the highest version that was erased.
    """
    kept = _kept(truncates)
    return max([top for r in results if (top := r.counts.top) >= kept and top > removed], default=0)


def ahead(committed: Mapping[int, int], reached: Mapping[int, int]) -> str:
    """The partitions whose committed offset is above what the ledger has reached, in words; empty if there is none."""
    found = [(p, offset, reached.get(p, 0)) for p, offset in sorted(committed.items()) if offset > reached.get(p, 0)]
    if not found:
        return ""
    p, offset, here = found[0]
    more = f", and so on for {len(found)} partitions" if len(found) > 1 else ""
    return f"its consumer group has committed offset {offset} of partition {p}, and its ledger ends at {here}{more}"


def _shows_losses(target: Target) -> bool:
    """Whether the highest version in a table says what it lacks: versions are positions, and rows do not just go."""
    if target.collapsing or removing_ttl(target.table.ttl) or target.table.cleanups:
        return False
    return target.system.version is not None and target.layout.kind != "time"


def _removals(ledger: Ledger, topic_id: str) -> tuple[int, int]:
    """The highest version that was erased from the table as it is, and the one that the last erasure left; −1 for none.

    A purge by age leaves the highest version, and notes none.
    """
    refills = len(ledger.facts(TableRefilled))
    removed = (r for r in ledger.facts(RowsEdited) if r.topic_id == topic_id and r.act == "removed")
    mine = [r for r in removed if r.left and r.since == refills]
    return max((int(r.top) for r in mine), default=-1), int(mine[-1].left) if mine else -1


def _kept(truncates: Iterable[TruncateFloor]) -> int:
    """No truncate removed a row from this version on."""
    return max([int(t.version) if t.version else _above(t) for t in truncates], default=-1)


def _above(truncate: TruncateFloor) -> int:
    """The lowest version of a position behind the truncate's, whose own rows may be those of before it.

    Where nothing was truncated, the floor is that of epoch and position 0.
    """
    known = truncate.epoch or truncate.commit
    return (truncate.epoch << _COMMIT_BITS | truncate.commit) + 1 << POSITION_SHIFT if known else -1


_MARK = "ch_sink fills this table: "


def fill_note(noted: Mapping[str, Any]) -> str:
    """The comment that says so."""
    return _MARK + json.dumps(noted)


def marked(comment: str) -> dict[str, Any] | None:
    """The note in the comment of a table that a run filled and did not finish; None for any other table."""
    if not comment.startswith(_MARK):
        return None
    noted: dict[str, Any] = json.loads(comment.removeprefix(_MARK))
    return noted


def is_entered(comment: str, ledger: Ledger) -> bool:
    """Whether the ledger knows of the filling that a table's comment notes, if it notes one of its stream.

    A table that was created like another one has the other one's comment.
    """
    noted = marked(comment)
    if noted is None or "results" not in noted or noted.get("stream", ledger.stream) != ledger.stream:
        return True
    facts = [TableRefilled(**fact) for fact in noted["refilled"]]
    return {*facts} <= {*ledger.facts(TableRefilled)} and all(ledger.progress(f.topic_id) for f in facts)


def expect_entered(table: TargetTable, ledger: Ledger) -> None:
    """Raises StreamFailed if the table was refilled, and the ledger does not know up to where."""
    if not is_entered(table.comment, ledger):
        raise StreamFailed(
            f"{table.qualified} was filled by a run that was killed before it was recorded",
            hint="Run the same `ch_sink resync CONFIG --apply` again (with its --against) to finish it.",
        )
