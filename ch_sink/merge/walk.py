"""The events that do not say everything themselves, one by one in Kafka order, with the state of their keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from ch_sink.change import BadRecord, ChangeBatch, Half, Op, Records
from ch_sink.merge.keys import KeyCodes
from ch_sink.merge.resolved import UNSET, Bools, Resolved, Scope
from ch_sink.order import Sequenced
from ch_sink.order.version import to_int
from ch_sink.policy import Policy
from ch_sink.ports import Handover, HandoverId

__all__ = ["Walk"]

_FORMER = (1 << 64) - 1  # inner position that no change has: marks the former row of a swapped key


@dataclass(slots=True)
class _Row:
    """State of one key during the walk."""

    ref: int = -1
    live: int = 0
    version: int = -1
    former: int = -1
    """The other live row, while a swap makes it two."""
    stored_live: int = 0
    """Whether the stored row is one, 0 or 1."""


class Walk:
    """Walks the special events in Kafka order."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        order: Sequenced,
        scope: Scope,
        policy: Policy,
        out: Resolved,
        coded: KeyCodes,
        waiting: Mapping[bytes, int],
        doubled: frozenset[bytes],
    ) -> None:
        self.batch, self.records, self.order = batch, records, order
        self.scope, self.policy, self.out, self.coded = scope, policy, out, coded
        self.waiting, self.doubled = waiting, doubled
        self.rows: dict[int, _Row] = {}
        self.blocked: dict[int, int] = {}
        """Key → offset from which on its changes wait."""
        self.local: dict[HandoverId, int] = {}
        self.open_swaps: dict[int, int] = {}
        self.unresolved: dict[int, str] = {}
        self.handed: dict[HandoverId, int] = {}
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

    def _waits(self, i: int) -> bool:
        since = self.blocked.get(int(self.coded.codes[i]))
        return since is not None and int(self.batch.offset[i]) >= since

    def key_bytes(self, i: int) -> bytes:
        return self.records.keys[int(self.batch.source_index[i])] or b""

    def _former_id(self, i: int) -> HandoverId:
        """Where the row of a key's former owner is kept while a swap goes on over a chunk's end."""
        name, high, low, _, _ = self.ids[i]
        return (name, high, low, _FORMER, int.from_bytes(sha256(self.key_bytes(i)).digest()[:8], "big"))

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
        known: set[int] = set()
        wanted: set[int] = set()
        codes, batch = self.coded.codes, self.batch
        for i in special.tolist():
            key = int(codes[i])
            if key in known or key in wanted or self._waits(i):
                continue
            handed = batch.half[i] == Half.CREATE and self.scope.omits_values
            if self.needs[i] and not (handed and not self.scope.places and not self.swaps[i]):
                wanted.add(key)
            elif not self.delete[i] and (handed or not self.partial[i]):
                known.add(key)
        return np.array(sorted(wanted), dtype=np.int64)

    def take_stored(self) -> None:
        """Start keys at their newest stored row."""
        out = self.out
        if out.stored is None or out.stored_codes is None or not len(out.stored_codes):
            return
        deleted = self._stored_deleted()
        for row, key in enumerate(out.stored_codes.tolist()):
            version = out.stored_versions[row] if out.stored_versions else -1
            now = self.rows.get(key)
            if now is None or version >= now.version:
                live = 0 if deleted[row] else 1
                self.rows[key] = _Row(out.stored_start + row, live, version, stored_live=live)

    def _stored_deleted(self) -> list[bool]:
        assert self.out.stored is not None
        rows = self.out.stored.rows
        if self.scope.deleted is None:
            return [False] * rows.num_rows
        column, value = self.scope.deleted
        return [v == value for v in rows.column(column).to_pylist()]

    def fetch_handover(self, special: npt.NDArray[np.int64], handover: Handover | None) -> None:
        """One query for the values that create halves need and no delete half of this chunk gives."""
        if handover is None:
            return
        ids: list[HandoverId] = []
        for i in special.tolist():
            if i not in self.ids or self._waits(i):
                continue
            if self.batch.half[i] == Half.DELETE:
                if self.key_bytes(i) in self.doubled:
                    ids.append(self._former_id(i))
                continue
            if self.partial[i]:
                ids.append(self.ids[i])
            if self.swaps[i] and self._stored_since(i):
                ids.append(self._former_id(i))
        if not ids:
            return
        found = handover.get(ids)
        start = self.out.pool.add(found.rows.select(self.batch.after.column_names)) if found.rows.num_rows else 0
        self.handed = {key: (start + row if row >= 0 else -1) for key, row in found.found.items()}
        self.out.counts["handed_over"] += len(found.found)

    def run(self, special: npt.NDArray[np.int64]) -> None:
        """The walk itself."""
        out, order = self.out, self.order
        strict = self.scope.unique_versions
        for i in special.tolist():
            key = int(self.coded.codes[i])
            if self._waits(i):
                out.apply[i] = False
                out.pending.append(i)
                continue
            row = self.rows.setdefault(key, _Row())
            version = to_int(order.version, i)
            if row.version > version or (strict and row.version == version):
                out.apply[i] = False
                out.superseded[i] = True
                out.counts["superseded"] += 1
                self._met_again(i, key, row)
                continue
            if self.delete[i]:
                self._delete(i, row)
            else:
                self._write(i, key, row)

    def _met_again(self, i: int, key: int, row: _Row) -> None:
        """Open and close swaps at events that an earlier attempt stored: what comes behind them may be new."""
        if self.swaps[i] and self._former_id(i) in self.handed:
            # The row is stored, and the delete of its key's former owner is still to come.
            row.former, row.live = self.handed[self._former_id(i)], 2
            self.open_swaps[key] = i
        elif self.batch.half[i] == Half.DELETE and self._doubled(i, key):
            # That was the former owner's delete. The next one is the owner's own.
            row.live, row.former = row.stored_live, -1
            self.open_swaps.pop(key, None)
            self.out.settled.add(self.key_bytes(i))

    def _doubled(self, i: int, key: int) -> bool:
        """Whether the key has two live rows, by this chunk or by the one before it."""
        return key in self.open_swaps or self.key_bytes(i) in self.doubled - self.out.settled

    def _stored_since(self, i: int) -> bool:
        """Whether the table holds this event's row already, or a later one of its key."""
        row = self.rows.get(int(self.coded.codes[i]))
        return row is not None and row.version >= to_int(self.order.version, i)

    def _origin(self, column: str, ref: int) -> int:
        """Where the value of a column of an image stands, once filled."""
        refs = self.out.origin.get(column)
        if refs is not None and 0 <= ref < len(refs) and refs[ref] != UNSET:
            return int(refs[ref])
        return ref

    def _write(self, i: int, key: int, row: _Row) -> None:
        batch, out = self.batch, self.out
        create_half = batch.half[i] == Half.CREATE
        missing = [c for c, mask in batch.unavailable.items() if mask[i]]
        if missing:
            known, ref = True, row.ref
            if create_half and self.scope.omits_values:
                # Without a position nothing tells which row had the old key.
                known, ref = self._handed(self.ids[i]) if i in self.ids else (True, -1)
            elif batch.op[i] == Op.CREATE and not row.live:
                ref = -1  # the row that its key had was deleted: its values are another row's
            if not known:
                self.blocked[key] = int(batch.offset[i])
                out.apply[i] = False
                out.pending.append(i)
                return
            if ref < 0 and self.policy.on_unresolved == "dead_letter":
                out.apply[i] = False
                self.unresolved[i] = missing[0]
                return
            for column in missing:
                out.origin[column][i] = self._origin(column, ref) if ref >= 0 else -1
                update = batch.updates.get(column)
                if update is not None and i in update.changes and out.origin[column][i] >= 0:
                    # The event's own value, once it is made from that row's.
                    out.bases[column][i] = out.origin[column][i]
                    out.origin[column][i] = i
            out.counts["filled"] += len(missing)
        if out.previous[i] < 0:
            out.previous[i] = row.ref
        if self.swaps[i] and row.live == 1:
            # Kept also within a chunk: a second attempt cannot see any more that two rows lived here.
            self._hand_over(self._former_id(i), row.ref)
            row.former, row.live = row.ref, 2
            self.open_swaps[key] = i
        else:
            row.live = 1
        row.ref = i

    def _handed(self, key: HandoverId) -> tuple[bool, int]:
        # What the store holds comes first: the first entry stays, whatever is delivered again.
        if key in self.handed:
            return True, self.handed[key]
        if key in self.local:
            return True, self.local[key]
        return False, -1

    def _delete(self, i: int, row: _Row) -> None:
        batch, out = self.batch, self.out
        carried = i in self.ids and self.key_bytes(i) in self.doubled - out.settled
        if carried and self._former_id(i) in self.handed:
            row.live, row.former = 2, self.handed[self._former_id(i)]
        leaving = row.former if row.live == 2 else row.ref
        if i in self.ids and self.scope.omits_values:
            self.local[self.ids[i]] = leaving
            self._hand_over(self.ids[i], leaving)
        if row.live == 2 and batch.half[i] == Half.DELETE:
            # The key's former owner leaves; the row that took the key stays.
            row.live, row.former = 1, -1
            owner = self.open_swaps.pop(int(self.coded.codes[i]), None)
            below = to_int(self.order.leaving, owner) if owner is not None else max(row.version - 1, 0)
            out.swapped.append((i, leaving, below))
            out.settled.add(self.key_bytes(i))
            out.apply[i] = False
            out.counts["swapped"] += 1
            return
        if out.image[i] < 0:
            out.image[i] = row.ref
            for column in batch.unavailable:
                out.origin[column][i] = self._origin(column, row.ref)
        if out.previous[i] < 0:
            out.previous[i] = row.ref
        row.live = 0

    def forgive(self) -> None:
        """Name the events that stay unresolved; not those that the chunk itself outdates.

        An event whose row is gone from the table is met when a chunk is applied a second time. A later whole image
        or delete of its key makes it meaningless.
        """
        if not self.unresolved:
            return
        whole = np.flatnonzero(self.out.apply & (self.delete | ~self.partial))
        latest = np.full(self.coded.count, -1, dtype=np.int64)
        latest[self.coded.codes[whole]] = whole
        for i, column in self.unresolved.items():
            if latest[self.coded.codes[i]] > i:
                self.out.counts["superseded"] += 1
            else:
                self.out.bad.append(self._unresolved(i, column))

    def _hand_over(self, key: HandoverId, ref: int) -> None:
        self.out.handover.append((key, ref))
        for column in self.batch.unavailable:
            origin = self._origin(column, ref) if ref >= 0 else -1
            self.out.handover_origin.setdefault(column, []).append(origin)

    def keep_open_swaps(self) -> None:
        """Remember the keys that are still doubled when the chunk ends; their former rows were handed over."""
        self.out.doubled.update(self.key_bytes(i) for i in self.open_swaps.values())

    def _unresolved(self, i: int, column: str) -> BadRecord:
        why = (
            "holds the unavailable-value placeholder"
            if self.scope.omits_values
            else "is not stated by the update, which says only what it changed"
        )
        reason = f"column {column!r} {why}, and no earlier value of this row is known"
        return BadRecord(int(self.batch.source_index[i]), reason, "unresolved", column)
