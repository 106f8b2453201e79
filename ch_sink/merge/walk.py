"""The events that do not say everything themselves, one by one in Kafka order, with the state of their keys."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ch_sink.merge.keys import KeyCodes
from ch_sink.merge.resolved import UNSET, Resolved, Scope
from ch_sink.merge.special import Special
from ch_sink.model.change import BadRecord, ChangeBatch, Records
from ch_sink.model.policy import ChangePolicy
from ch_sink.order import Sequenced
from ch_sink.order.version import to_int
from ch_sink.ports import Handover, HandoverId

__all__ = ["Walk"]


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


class Walk(Special):
    """Walks the special events in Kafka order."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        order: Sequenced,
        scope: Scope,
        policy: ChangePolicy,
        out: Resolved,
        coded: KeyCodes,
        waiting: Mapping[bytes, int],
        doubled: Mapping[bytes, int],
    ) -> None:
        super().__init__(batch, records, order, scope, coded, waiting, doubled)
        self.policy, self.out = policy, out
        self.rows: dict[int, _Row] = {}
        self.local: dict[HandoverId, int] = {}
        self.open_swaps: dict[int, int] = {}
        self.unresolved: dict[int, str] = {}
        self.handed: dict[HandoverId, int] = {}
        self.filled = 0
        self.image: list[int] = []
        self.previous: list[int] = []
        self.origin: dict[str, list[int]] = {}

    def take_stored(self) -> None:
        """Start keys at their newest stored row."""
        out = self.out
        if out.stored is None or out.stored_codes is None or not len(out.stored_codes):
            return
        codes, rows = out.stored_codes.tolist(), self.rows
        versions = out.stored_versions or [-1] * len(codes)
        for ref, (key, version, deleted) in enumerate(zip(codes, versions, self._stored_deleted(), strict=True)):
            now = rows.get(key)
            if now is None or version >= now.version:
                live = 0 if deleted else 1
                rows[key] = _Row(out.stored_start + ref, live, version, stored_live=live)

    def _stored_deleted(self) -> list[bool]:
        assert self.out.stored is not None
        rows = self.out.stored.rows
        if self.scope.deleted is None:
            return [False] * rows.num_rows
        column, value = self.scope.deleted
        return list((rows.column(column).to_numpy() == value).tolist())

    def fetch_handover(self, special: npt.NDArray[np.int64], handover: Handover | None) -> None:
        """One query for the values that create halves need and no delete half of this chunk gives."""
        if handover is None:
            return
        ids: list[HandoverId] = []
        for i in special.tolist():
            if i not in self.ids or self.waits(i):
                continue
            if self.events.delete_half[i]:
                if self.key_bytes(i) in self.doubled:
                    ids.append(self.former_id(i))
                continue
            if self.events.partial[i]:
                ids.append(self.ids[i])
            if self.events.swaps[i] and self._stored_since(i):
                ids.append(self.former_id(i))
        if not ids:
            return
        found = handover.get(ids)
        start = self.out.pool.add(found.rows.select(self.batch.after.column_names)) if found.rows.num_rows else 0
        self.handed = {key: (start + row if row >= 0 else -1) for key, row in found.found.items()}
        self.out.counts["handed_over"] += len(found.found)

    def run(self, special: npt.NDArray[np.int64]) -> None:
        """The walk itself."""
        out, events = self.out, self.events
        strict = self.scope.unique_versions
        apply, superseded = out.apply.tolist(), out.superseded.tolist()
        self.image, self.previous = out.image.tolist(), out.previous.tolist()
        self.origin = {column: refs.tolist() for column, refs in out.origin.items()}
        for i in special.tolist():
            key = events.key[i]
            if self.waits(i):
                apply[i] = False
                out.pending.append(i)
                continue
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = _Row()
            version = events.version[i]
            if row.version > version or (strict and row.version == version):
                apply[i] = False
                superseded[i] = True
                out.counts["superseded"] += 1
                self._met_again(i, key, row)
            elif events.delete[i]:
                apply[i] = self._delete(i, row)
            else:
                apply[i] = self._write(i, key, row)
        out.apply[:], out.superseded[:] = apply, superseded
        out.image[:], out.previous[:] = self.image, self.previous
        for column, refs in self.origin.items():
            out.origin[column][:] = refs
        if self.filled:
            out.counts["filled"] += self.filled

    def _met_again(self, i: int, key: int, row: _Row) -> None:
        """Open and close swaps at events that an earlier attempt stored: what comes behind them may be new."""
        if self.events.swaps[i] and self.former_id(i) in self.handed:
            # The row is stored, and the delete of its key's former owner is still to come.
            row.former, row.live = self.handed[self.former_id(i)], 2
            self.open_swaps[key] = i
        elif self.events.delete_half[i] and self._doubled(i, key):
            # That was the former owner's delete. The next one is the owner's own.
            row.live, row.former = row.stored_live, -1
            self.open_swaps.pop(key, None)
            self.out.settled.add(self.key_bytes(i))

    def _doubled(self, i: int, key: int) -> bool:
        """Whether the key has two live rows, by this chunk or by the one before it."""
        return key in self.open_swaps or self._carried(i)

    def _carried(self, i: int) -> bool:
        """Whether the last chunk left the key doubled, and its former owner is still to leave."""
        key = self.key_bytes(i)
        return key in self.doubled and key not in self.out.settled

    def _stored_since(self, i: int) -> bool:
        """Whether the table holds something of this event already, or a later row of its key."""
        row = self.rows.get(self.events.key[i])
        return row is not None and row.version >= to_int(self.order.leaving, i)

    def _origin(self, column: str, ref: int) -> int:
        """Where the value of a column of an image stands, once filled."""
        refs = self.origin.get(column)
        if refs is not None and 0 <= ref < len(refs) and refs[ref] != UNSET:
            return refs[ref]
        return ref

    def _write(self, i: int, key: int, row: _Row) -> bool:
        """Whether the event's row is to be written."""
        if self.events.partial[i] and not self._fill(i, key, row):
            return False
        if self.previous[i] < 0:
            self.previous[i] = row.ref
        if self.events.swaps[i] and (row.live == 1 or self._left(i, row)):
            # Kept also within a chunk: a second attempt cannot see any more that two rows lived here.
            self._hand_over(self.former_id(i), row.ref)
            row.former, row.live = row.ref, 2
            self.open_swaps[key] = i
        else:
            row.live = 1
        row.ref = i
        return True

    def _left(self, i: int, row: _Row) -> bool:
        """Whether an earlier attempt only got to mark the swapped key's former row as having left its place."""
        return not row.live and row.version == to_int(self.order.leaving, i) and self.former_id(i) in self.handed

    def _fill(self, i: int, key: int, row: _Row) -> bool:
        """Find where the values come from that the event leaves out; False where they are not known (yet)."""
        batch, out = self.batch, self.out
        missing = [c for c, mask in batch.unavailable.items() if mask[i]]
        known, ref = True, row.ref
        if self.events.create_half[i] and self.scope.omits_values:
            # Without a position nothing tells which row had the old key.
            known, ref = self._handed(self.ids[i]) if i in self.ids else (True, -1)
        elif self.events.create[i] and not row.live:
            ref = -1  # the row that its key had was deleted: its values are another row's
        if not known:
            self.blocked[key] = self.events.offset[i]
            out.pending.append(i)
            return False
        if ref < 0 and self.policy.on_unresolved == "dead_letter":
            self.unresolved[i] = missing[0]
            return False
        for column in missing:
            base = self._origin(column, ref) if ref >= 0 else -1
            self.origin[column][i] = base
            update = batch.updates.get(column)
            if update is not None and i in update.changes and base >= 0:
                # The event's own value, once it is made from that row's.
                out.bases[column][i] = base
                self.origin[column][i] = i
        self.filled += len(missing)
        return True

    def _handed(self, key: HandoverId) -> tuple[bool, int]:
        # What the store holds comes first: the first entry stays, whatever is delivered again.
        if key in self.handed:
            return True, self.handed[key]
        if key in self.local:
            return True, self.local[key]
        return False, -1

    def _delete(self, i: int, row: _Row) -> bool:
        """Whether the delete is to be written: not that of a key's former owner, whose successor stays."""
        out = self.out
        half = i in self.ids
        if half and self.events.delete_half[i] and self._carried(i) and self.former_id(i) in self.handed:
            row.live, row.former = 2, self.handed[self.former_id(i)]
        leaving = row.former if row.live == 2 else row.ref
        if half and self.scope.omits_values:
            self.local[self.ids[i]] = leaving
            self._hand_over(self.ids[i], leaving)
        if row.live == 2 and self.events.delete_half[i]:
            # The row that took the key stays.
            row.live, row.former = 1, -1
            owner = self.open_swaps.pop(self.events.key[i], None)
            below = to_int(self.order.leaving, owner) if owner is not None else max(row.version - 1, 0)
            out.swapped.append((i, leaving, below))
            out.settled.add(self.key_bytes(i))
            out.counts["swapped"] += 1
            return False
        if self.image[i] < 0:
            self.image[i] = row.ref
            for column in self.batch.unavailable:
                self.origin[column][i] = self._origin(column, row.ref)
        if self.previous[i] < 0:
            self.previous[i] = row.ref
        row.live = 0
        return True

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
        self.out.doubled.update({self.key_bytes(i): self.inner(i) for i in self.open_swaps.values()})

    def _unresolved(self, i: int, column: str) -> BadRecord:
        why = (
            "holds the unavailable-value placeholder"
            if self.scope.omits_values
            else "is not stated by the update, which says only what it changed"
        )
        reason = f"column {column!r} {why}, and no earlier value of this row is known"
        return BadRecord(int(self.batch.source_index[i]), reason, "unresolved", column)
