"""Recognises re-delivered changes: the very same record exists at an earlier offset."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ch_sink.model.change import ChangeBatch, Half, Op, Records
from ch_sink.ports import History

_Changes = dict[str, list[tuple[int, tuple[int, int]]]]
"""Row → offset and commit position of each of its changes."""


@dataclass(frozen=True, slots=True)
class ChangeIdentity:
    """What identifies a change when it is re-delivered."""

    commit_high: int
    commit_low: int
    inner_high: int
    inner_low: int
    key: bytes
    """The Kafka key's bytes; if there is none, the values of the configured key, or the row."""
    op: int
    source_ts: int


def identities(batch: ChangeBatch, records: Records) -> list[ChangeIdentity]:
    """The identity of each change of a batch.

    If there is no key, the row replaces it: all rows of a snapshot share one position, and so do rows that PostgreSQL
    inserts together (``COPY``). A truncate is identified without either, because whether the batch has keys
    depends on the other records in it.
    """
    given = records.keys
    keys = [given[i] or b"" for i in batch.source_index.tolist()]
    lacking = [i for i in np.flatnonzero(batch.op != Op.TRUNCATE).tolist() if not keys[i]]
    if lacking:
        images = [batch.key] if batch.key is not None else [i for i in (batch.after, batch.before) if i is not None]
        rows = [image.take(pa.array(lacking)).to_pylist() for image in images]
        for i, *values in zip(lacking, *rows, strict=True):
            keys[i] = repr(tuple(values)).encode()
    return [
        ChangeIdentity(ch, cl, ih, il, key, op, ts)
        for (ch, cl), (ih, il), key, op, ts in zip(
            batch.commit.tolist(),
            batch.inner.tolist(),
            keys,
            batch.op.tolist(),
            batch.source_ts.tolist(),
            strict=True,
        )
    ]


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
    ) -> None:
        self._batch, self._records = batch, records
        self._mine: list[ChangeIdentity] | None = None
        self._offsets = batch.offset
        self._history = history
        self._decode = decode
        self._limit, self._dead_letters = limit, failed
        self._known: dict[ChangeIdentity, int] | None = None
        """Each identity with the first offset at which it was applied."""
        self._failed: dict[ChangeIdentity, int] = {}
        """Dead letters, each with the lowest of its offsets."""
        self._upto = 0
        self._applied: list[tuple[ChangeBatch, Sequence[int]]] = []
        """Events known to be applied at their first offsets."""
        self._by_row: _Changes | None = None

    def before(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and was applied there."""
        if self._mine is None or self._known is None:
            self._mine, self._known = identities(self._batch, self._records), {}
            self._look_back(self._known)
        if self._upto < event:
            new = [i for i in range(self._upto, event) if self._mine[i] not in self._known]
            self._applied.append((self._batch, new))
            self._by_row = None if new else self._by_row
            self._known |= {self._mine[i]: int(self._offsets[i]) for i in new[::-1]}
            self._upto = event
        return self._mine[event] in self._known

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
        found = identities(batch, earlier)
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
    return repr([column[event].as_py() for column in batch.key.columns])
