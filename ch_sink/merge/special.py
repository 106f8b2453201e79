"""Which events do not say everything themselves, and which keys' stored rows are asked for because of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from ch_sink.merge.keys import KeyCodes
from ch_sink.merge.resolved import Bools, Scope
from ch_sink.model.change import ChangeBatch, Half, Op, Records
from ch_sink.order import Sequenced
from ch_sink.order.version import to_int, to_ints
from ch_sink.ports import HandoverId

__all__ = ["Special"]

_FORMER = (1 << 64) - 1  # inner position that no change has: marks the former row of a swapped key


@dataclass(frozen=True, slots=True)
class _Events:
    """What the walk reads of each event, as lists: a value of an array costs ten times as much to get at."""

    key: list[int]
    offset: list[int]
    version: list[int]
    delete: list[bool]
    create: list[bool]
    delete_half: list[bool]
    create_half: list[bool]
    partial: list[bool]
    needs: list[bool]
    swaps: list[bool]


class Special:
    """The special events of a chunk: those that leave something out, and all others of their keys."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        order: Sequenced,
        scope: Scope,
        coded: KeyCodes,
        waiting: Mapping[bytes, int],
        doubled: Mapping[bytes, int],
    ) -> None:
        self.batch, self.records, self.order = batch, records, order
        self.scope, self.coded = scope, coded
        self.waiting, self.doubled = waiting, doubled
        self.blocked: dict[int, int] = {}
        """Key → offset from which on its changes wait."""
        n = len(batch)
        self.partial = np.zeros(n, dtype=np.bool_)
        for mask in batch.unavailable.values():
            self.partial |= mask
        self.delete = batch.op == Op.DELETE
        self.ids = self._ids() if scope.omits_values or scope.deferrable else {}
        self.needs = np.zeros(n, dtype=np.bool_)

    def _ids(self) -> dict[int, HandoverId]:
        """Identity of every half of a key change, by event.

        The source time is part of it (above the 16 bits of the commit position's high word): a restored database
        may use a position a second time.
        """
        batch = self.batch
        # Flattened events may tell no position at all: nothing joins the halves of their key changes.
        placed = batch.commit.any(axis=1) | batch.inner.any(axis=1)
        return {
            i: (
                batch.source_name[int(batch.source_code[i])],
                (max(int(batch.source_ts[i]), 0) << 16) | int(batch.commit[i, 0]),
                int(batch.commit[i, 1]),
                int(batch.inner[i, 0]),
                int(batch.inner[i, 1]),
            )
            for i in np.flatnonzero((batch.half != Half.NONE) & placed).tolist()
        }

    def special_events(self) -> npt.NDArray[np.int64]:
        """All events of the keys that have an event which does not say everything itself."""
        batch, scope = self.batch, self.scope
        needs = self.partial.copy()
        if scope.omits_values:
            whole_creates = {
                self.ids.get(i) for i in np.flatnonzero((batch.half == Half.CREATE) & ~self.partial).tolist()
            }
            for i in np.flatnonzero(batch.half == Half.DELETE).tolist():
                needs[i] |= i in self.ids and self.ids[i] not in whole_creates
        if scope.places:
            unsure = (batch.op != Op.CREATE) | (not scope.creates_anew)
            if scope.whole_before:
                unsure &= ~batch.has_before
            needs |= unsure | self.order.recheck
        self.swaps = self._swaps() if scope.deferrable else np.zeros(len(batch), dtype=np.bool_)
        needs |= self.swaps
        self.needs = needs & self.order.keep
        chosen = np.zeros(self.coded.count, dtype=np.bool_)
        chosen[self.coded.codes[self.needs]] = True
        if self.doubled:
            for i in np.flatnonzero(batch.half == Half.DELETE).tolist():
                if self.key_bytes(i) in self.doubled:
                    self.needs[i] = True  # with the version of the row that stays
                    chosen[self.coded.codes[i]] = True
        if self.waiting:
            for i in range(len(batch)):
                since = self.waiting.get(self.key_bytes(i))
                if since is not None:
                    chosen[self.coded.codes[i]] = True
                    self.blocked[int(self.coded.codes[i])] = since
        if not chosen.any():
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(chosen[self.coded.codes] & self.order.keep)

    @cached_property
    def events(self) -> _Events:
        """To be asked for once the special events are known."""
        batch = self.batch
        return _Events(
            self.coded.codes.tolist(),
            batch.offset.tolist(),
            to_ints(self.order.version),
            self.delete.tolist(),
            (batch.op == Op.CREATE).tolist(),
            (batch.half == Half.DELETE).tolist(),
            (batch.half == Half.CREATE).tolist(),
            self.partial.tolist(),
            self.needs.tolist(),
            self.swaps.tolist(),
        )

    def waits(self, i: int) -> bool:
        if not self.blocked:
            return False
        since = self.blocked.get(self.events.key[i])
        return since is not None and self.events.offset[i] >= since

    def key_bytes(self, i: int) -> bytes:
        return self.records.keys[int(self.batch.source_index[i])] or b""

    def former_id(self, i: int) -> HandoverId:
        """Where the row of a key's former owner is kept while a swap goes on over a chunk's end.

        Named by the key and by the create half that opened the swap: a transaction may swap a key twice. A delete
        half is asked only where the last chunk left its key doubled.
        """
        name, high, low, _, _ = self.ids[i]
        if not self.batch.has_commit[i]:
            high, low = high >> 16 << 16, 0  # a bound of its own, which the transaction does not share
        opener = self.inner(i) if self.events.create_half[i] else self.doubled[self.key_bytes(i)]
        digest = sha256(opener.to_bytes(16, "big") + self.key_bytes(i)).digest()
        return (name, high, low, _FORMER, int.from_bytes(digest[:8], "big"))

    def inner(self, i: int) -> int:
        """Position of the event inside its transaction, 128 bits."""
        return to_int(self.batch.inner, i)

    def _transaction(self, i: int) -> int:
        """What events of one transaction share: the commit position, or that they state none, as a stream's first."""
        return to_int(self.order.commit, i) if self.batch.has_commit[i] else -1

    def _swaps(self) -> Bools:
        """Create halves behind which the delete of a former owner of the same key may come."""
        batch, order = self.batch, self.order
        out = np.zeros(len(batch), dtype=np.bool_)
        creates = np.flatnonzero((batch.half == Half.CREATE) & order.keep)
        if not len(creates):
            return out
        deletes = {
            (int(self.coded.codes[i]), self._transaction(i))
            for i in np.flatnonzero((batch.half == Half.DELETE) & order.keep).tolist()
        }
        last = self._transaction(len(batch) - 1)
        for i in creates.tolist():
            at = self._transaction(i)
            if at == last or (int(self.coded.codes[i]), at) in deletes:
                out[i] = True
        return out

    def keys_to_look_up(self, special: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Keys whose stored row matters: no whole image of them comes first in the chunk."""
        if not len(special):
            return special
        known: set[int] = set()
        wanted: set[int] = set()
        events, omits, places = self.events, self.scope.omits_values, self.scope.places
        for i in special.tolist():
            key = events.key[i]
            if key in known or key in wanted or self.waits(i):
                continue
            handed = omits and events.create_half[i]
            if events.needs[i] and not (handed and not places and not events.swaps[i]):
                wanted.add(key)
            elif not events.delete[i] and (handed or not events.partial[i]):
                known.add(key)
        return np.array(sorted(wanted), dtype=np.int64)
