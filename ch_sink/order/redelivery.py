"""Redelivery: records that repeat an earlier change, told from changes that only look alike.

A change is a re-delivery if the very same record exists at an earlier offset. Where every change counts and no position
stepped back, a record of another run of the connector has to be the earlier one: a run sends nothing twice, while rows
that PostgreSQL inserts together (``COPY``) and the changes of a compressed transaction of MySQL share a position.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Half, Op, Records
from ch_sink.ports import History
from ch_sink.types.arrow import untimed

COUNT_AGAIN = (
    "Drop the table and the topic, set another `stream`, and let the connector take its whole snapshot again before "
    "`ch_sink init` and `run`; or set key_columns, if some columns are unique in the source. If the topic was created "
    "again and begins with a whole snapshot, `ch_sink resync CONFIG --against topic --apply` fills the table from it."
)
"""The next step where nothing tells whether a table without a key has a row already."""

_Changes = dict[str, list[tuple[int, tuple[int, int]]]]
"""Row → offset and commit position of each of its changes."""


@dataclass(frozen=True, slots=True)
class ChangeIdentity:
    """The identity by which a redelivered change is recognized."""

    commit_high: int
    commit_low: int
    inner_high: int
    inner_low: int
    key: bytes
    """The Kafka key's bytes; if there is none, the values of the configured key, or the row."""
    op: int
    source_ts: int
    """0 if it does not count: some connectors state the time of reading (Db2), which differs when they read again."""


def identities(batch: ChangeBatch, records: Records, *, timed: bool = True) -> list[ChangeIdentity]:
    """The identity of each change of a batch.

    ``timed``: changes of other times are others; else only those that have no inner position, as rows of snapshots. If
    there is no key, the row replaces it: all rows of a snapshot share one position. A truncate is identified without
    either, because whether the batch has keys depends on the other records in it.
    """
    given = records.keys
    keys = [given[i] or b"" for i in batch.source_index.tolist()]
    lacking = [i for i in np.flatnonzero(batch.op != Op.TRUNCATE).tolist() if not keys[i]]
    if lacking:
        rows = _images(batch, lacking) if batch.key is None else _texts(batch.key, lacking)
        for i, row in zip(lacking, rows, strict=True):
            keys[i] = row.encode()
    times = batch.source_ts if timed else np.where(batch.inner.any(axis=1), 0, batch.source_ts)
    return [
        ChangeIdentity(ch, cl, ih, il, key, op, ts)
        for (ch, cl), (ih, il), key, op, ts in zip(
            batch.commit.tolist(),
            batch.inner.tolist(),
            keys,
            batch.op.tolist(),
            times.tolist(),
            strict=True,
        )
    ]


def _images(batch: ChangeBatch, events: list[int]) -> list[str]:
    """The rows after and before each of these events, as text."""
    before = [""] * len(events) if batch.before is None else _texts(batch.before, events)
    states = batch.has_before[events].tolist()
    return [
        f"{row} {old if stated else ''}"
        for row, old, stated in zip(_texts(batch.after, events), before, states, strict=True)
    ]


def _texts(rows: pa.Table, places: list[int]) -> list[str]:
    columns = [untimed(column).to_pylist() for column in rows.take(pa.array(places, pa.int64())).itercolumns()]
    return [repr(values) for values in zip(*columns, strict=True)]


_RUN = "__debezium.context.runId"


def _run_of(batch: ChangeBatch, records: Records, event: int) -> bytes | None:
    """The run of the connector that sent an event; None if it does not say so (connectors before 3.5)."""
    headers = None if records.headers is None else records.headers[int(batch.source_index[event])]
    return dict(headers or ()).get(_RUN)


class Seen:
    """Identities of the records at earlier offsets, read from the topic on first use."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        history: History | None,
        decode: Callable[[Records], ChangeBatch] | None,
        limit: int,
        failed: Callable[[int, int], Collection[int]] | None = None,
        *,
        timed: bool = True,
    ) -> None:
        self._batch, self._records = batch, records
        self._mine: list[ChangeIdentity] | None = None
        self._offsets = batch.offset
        self._history = history
        self._decode = decode
        self._limit, self._dead_letters, self._timed = limit, failed, timed
        self._known: dict[ChangeIdentity, int] | None = None
        """Each identity with the first offset at which it was applied."""
        self._failed: dict[ChangeIdentity, int] = {}
        """Dead letters, each with the lowest of its offsets."""
        self._upto = 0
        self._applied: list[tuple[ChangeBatch, Sequence[int]]] = []
        """Events known to be applied at their first offsets."""
        self._by_row: _Changes | None = None
        self._read: list[tuple[ChangeBatch, Records, list[ChangeIdentity]]] = []
        """The earlier records, if there are any, and those of the batch."""
        self._alike: dict[ChangeIdentity, list[tuple[int, int]]] = defaultdict(list)
        """Places in `_read` of the events of one identity."""
        self._compared = [0, 0]

    def before(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and was applied there."""
        if self._mine is None or self._known is None:
            self._mine, self._known = identities(self._batch, self._records, timed=self._timed), {}
            self._look_back(self._known)
            self._read.append((self._batch, self._records, self._mine))
        if self._upto < event:
            new = [i for i in range(self._upto, event) if self._mine[i] not in self._known]
            self._applied.append((self._batch, new))
            self._by_row = None if new else self._by_row
            self._known |= {self._mine[i]: int(self._offsets[i]) for i in new[::-1]}
            self._upto = event
        return self._mine[event] in self._known

    def again(self, event: int, *, stepped_back: bool) -> bool:
        """Whether the record that `before` has found is this very change, and not an equal one beside it.

        Raises StreamFailed if nothing tells that, and equal rows are counted.
        """
        mine = _run_of(self._batch, self._records, event)
        runs = self._runs_with(event)
        here = runs.pop(mine, 0)
        if mine is not None:
            return any(there > here for there in runs.values())
        if not here or stepped_back or self._batch.key is not None:
            return here > 0
        raise StreamFailed(
            f"partition {self._records.partition} of {self._records.topic}: the record at offset "
            f"{self._offsets[event]} equals that at {self.first(event)}, at the same position of the source: either "
            "equal rows were inserted at once (COPY), or the connector was restarted and sent one again. A table "
            "without a key counts its rows",
            hint=f"Connectors from 3.5 on say which of them it is (header {_RUN}): upgrade. {COUNT_AGAIN}",
        )

    def _runs_with(self, event: int) -> Counter[bytes | None]:
        """How many records before the event have its identity and its images, by run of the connector."""
        for at, (_, _, known) in enumerate(self._read):
            until = event if at == len(self._read) - 1 else len(known)
            for i in range(self._compared[at], until):
                self._alike[known[i]].append((at, i))
            self._compared[at] = max(until, self._compared[at])
        mine, _, known = self._read[-1]
        found: Counter[bytes | None] = Counter()
        for at, i in self._alike[known[event]]:
            batch, records, _ = self._read[at]
            if mine.key is None or _images(batch, [i]) == _images(mine, [event]):
                found[_run_of(batch, records, i)] += 1
        return found

    def first(self, event: int) -> int:
        """The offset of the record that `before` has found."""
        return self._known[self._mine[event]] if self._mine is not None and self._known is not None else -1

    def failed(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and only ever was a dead letter."""
        return not self.before(event) and self._mine is not None and self._mine[event] in self._failed

    def followed(self, event: int) -> bool:
        """Whether a later change of its row was applied since the dead letter that `failed` has found.

        That one left the row as it had to be, and where it has deleted the row, nothing of it may be stored.
        """
        if self._mine is None or self._batch.key is None:
            return False
        if self._by_row is None:
            self._by_row = _changes_by_row(self._applied)
        change = self._mine[event]
        lost, place = self._failed[change], (change.commit_high, change.commit_low)
        later = self._by_row.get(_row(self._batch, event), ())
        return any(offset > lost and position >= place for offset, position in later)

    def _look_back(self, known: dict[ChangeIdentity, int]) -> None:
        if self._history is None or self._decode is None or not len(self._offsets):
            return
        earlier = self._history.before(int(self._offsets[0]), self._limit)
        if not len(earlier):
            return
        batch = self._decode(earlier)
        found = identities(batch, earlier, timed=self._timed)
        # Only of earlier chunks: what an earlier attempt did with this one must not decide the next.
        span = int(earlier.offsets[0]), int(self._records.offsets[0])
        dead = set(self._dead_letters(*span)) if self._dead_letters is not None and span[0] < span[1] else set()
        first = []
        for i, (identity, offset) in enumerate(zip(found, batch.offset.tolist(), strict=True)):
            if offset in dead:
                self._failed.setdefault(identity, offset)
            elif identity not in known:
                known[identity] = offset
                first.append(i)
        self._applied.append((batch, first))
        self._read.append((batch, earlier, found))


def _changes_by_row(events: Sequence[tuple[ChangeBatch, Sequence[int]]]) -> _Changes:
    found: _Changes = defaultdict(list)
    for batch, chosen in events:
        for i in chosen if batch.key is not None else ():
            high, low = batch.commit[i].tolist()
            # Where keys are swapped, the former row leaves behind the new one, at the same position.
            behind = -1 if batch.half[i] == Half.DELETE else 0
            found[_row(batch, i)].append((int(batch.offset[i]), (high, low + behind)))
    return found


def _row(batch: ChangeBatch, event: int) -> str:
    """The key of an event as text; keys of one row need not be the same bytes."""
    assert batch.key is not None
    return repr([untimed(column.slice(event, 1)).to_pylist() for column in batch.key.columns])
