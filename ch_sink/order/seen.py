"""Recognises re-delivered changes: the very same record exists at an earlier offset."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.ports import History

__all__ = ["ChangeIdentity", "Seen", "identities"]


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
        self._known: set[ChangeIdentity] | None = None
        self._failed: set[ChangeIdentity] = set()
        self._upto = 0

    def before(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and was applied there."""
        if self._mine is None or self._known is None:
            self._mine, self._known = identities(self._batch, self._records), set()
            self._look_back(self._known)
        self._known.update(self._mine[self._upto : event])
        self._upto = max(self._upto, event)
        return self._mine[event] in self._known

    def failed(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and only ever was a dead letter."""
        return not self.before(event) and self._mine is not None and self._mine[event] in self._failed

    def _look_back(self, known: set[ChangeIdentity]) -> None:
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
        for identity, offset in zip(found, batch.offset.tolist(), strict=True):
            (self._failed if offset in dead else known).add(identity)
