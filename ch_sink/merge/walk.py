"""The dependent events, one by one in Kafka order, with the state of their keys."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.merge.dependent import Dependent, EventLists, apply_updates
from ch_sink.merge.resolved import OUTRANKED, UNSET, Bools, Resolved, Scope, Swapped
from ch_sink.model.change import BadRecord, HandoverId, Op
from ch_sink.model.policy import ChangePolicy
from ch_sink.order import Decision
from ch_sink.order.version import to_int
from ch_sink.ports import Handover
from ch_sink.sources import STATED, source_for


@dataclass(slots=True)
class KeyRow:
    """State of one key during the walk. Rows are numbers in the pool, -1 for none."""

    ref: int = -1
    live: int = 0
    """Live rows of the key: 0, 1, or 2 while a swap makes it two."""
    version: int = -1
    former: int = -1
    """The other live row, while a swap makes it two."""
    stored_live: int = 0
    """Whether the stored row is live, 0 or 1."""


def walk(dependent: Dependent, out: Resolved, scope: Scope, policy: ChangePolicy, handover: Handover | None) -> None:
    """Resolve the dependent events into ``out``, from the stored rows that were looked up and from the hand-over."""
    if dependent.lists is None:
        return
    rows = _stored_rows(out, scope)
    handed = _handed_over(dependent, rows, out, handover)
    state = Walk(dependent, dependent.lists, out, scope, policy, rows, handed)
    state.run()
    apply_updates(dependent.chunk.batch, out)
    state.report_unresolved()
    state.keep_open_swaps()


class Walk:
    """The state of the walk: rows by key, and where the values of each event come from."""

    def __init__(
        self,
        dependent: Dependent,
        events: EventLists,
        out: Resolved,
        scope: Scope,
        policy: ChangePolicy,
        rows: dict[int, KeyRow],
        handed: Mapping[HandoverId, int],
    ) -> None:
        self.dependent, self.chunk, self.batch = dependent, dependent.chunk, dependent.chunk.batch
        self.trace = self.chunk.order.trace
        self.events, self.ids = events, dependent.ids
        self.out, self.scope, self.policy = out, scope, policy
        self.rows, self.handed = rows, handed
        self.blocked = dict(dependent.blocked)
        self.local: dict[HandoverId, int] = {}
        self.open_swaps: dict[int, int] = {}
        self.unresolved: dict[int, str] = {}
        self.filled = 0
        self.long: dict[str, Bools] = {}
        """Column → rows that hold a long value."""
        self.image: list[int] = out.image.tolist()
        self.previous: list[int] = out.previous.tolist()
        self.origin: dict[str, list[int]] = {column: refs.tolist() for column, refs in out.origin.items()}

    def run(self) -> None:
        """Walk all events."""
        out, events = self.out, self.events
        strict = self.scope.unique_versions
        apply, superseded = out.apply.tolist(), out.superseded.tolist()
        for i in self.dependent.events.tolist():
            key = events.key[i]
            if self.blocked and self._waits(i):
                apply[i] = False
                out.pending.append(i)
                continue
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = KeyRow()
            version = events.version[i]
            if row.version > version or (strict and row.version == version):
                apply[i] = False
                superseded[i] = True
                out.counts["superseded"] += 1
                if self.trace is not None:
                    self.trace.note(events.offset[i], "superseded", OUTRANKED, version=row.version)
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

    def _waits(self, i: int) -> bool:
        since = self.blocked.get(self.events.key[i])
        return since is not None and self.events.offset[i] >= since

    def _met_again(self, i: int, key: int, row: KeyRow) -> None:
        """Open and close swaps at events that an earlier attempt stored: what follows them may be new."""
        former_id = self.dependent.former_id
        if self.events.swaps[i] and former_id(i) in self.handed:
            # The row is stored, and the delete of its key's former owner is still to come.
            row.former, row.live = self.handed[former_id(i)], 2
            self._open(key, i)
        elif self.events.delete_half[i] and (key in self.open_swaps or self._carried(i)):
            # That was the former owner's delete. The next one is the owner's own.
            row.live, row.former = row.stored_live, -1
            self._close(key, i)
            self.out.settled.add(self.chunk.key_bytes(i))

    def _open(self, key: int, create: int) -> None:
        self.open_swaps[key] = create
        self.out.opened[create] = -1

    def _close(self, key: int, delete: int) -> int | None:
        """The create half that opened the key's swap, if it is in this chunk."""
        create = self.open_swaps.pop(key, None)
        if create is not None:
            self.out.opened[create] = delete
        elif self._carried(delete):
            self.out.closers[self.chunk.key_bytes(delete)] = delete
        return create

    def _carried(self, i: int) -> bool:
        """Whether the last chunk left the key doubled, and its former owner is still to leave."""
        key = self.chunk.key_bytes(i)
        return key in self.chunk.left.doubled and key not in self.out.settled

    def _origin(self, column: str, ref: int) -> int:
        """The row that holds the value of a column of an image, once filled."""
        refs = self.origin.get(column)
        if refs is not None and 0 <= ref < len(refs) and refs[ref] != UNSET:
            return refs[ref]
        return ref

    def _write(self, i: int, key: int, row: KeyRow) -> bool:
        """Whether to write the event's row."""
        if self.events.partial[i] and not self._fill(i, key, row):
            return False
        if self.previous[i] < 0:
            self.previous[i] = row.ref
        if self.events.swaps[i] and (row.live == 1 or self._left(i, row)):
            # Kept also within a chunk: a second attempt cannot see any more that two rows lived here.
            self._hand_over(self.dependent.former_id(i), row.ref)
            row.former, row.live = row.ref, 2
            self._open(key, i)
        else:
            row.live = 1
        row.ref = i
        return True

    def _left(self, i: int, row: KeyRow) -> bool:
        """Whether an earlier attempt only got to mark the swapped key's former row as having left its place."""
        if row.live or row.version != to_int(self.chunk.order.leaving, i):
            return False
        return self.dependent.former_id(i) in self.handed

    def _fill(self, i: int, key: int, row: KeyRow) -> bool:
        """Find where the values come from that the event leaves out; False if they are not known (yet)."""
        batch, out, upserts = self.batch, self.out, self.scope.upserts
        missing = [c for c, mask in batch.unavailable.items() if mask[i]]
        known, ref = True, row.ref
        if self.events.create_half[i] and self.scope.omits_values:
            # Without a position nothing says which row had the old key.
            known, ref = self._handed(self.ids[i]) if i in self.ids else (True, -1)
        elif (self.events.create[i] or upserts is not None) and not row.live:
            ref = -1  # the row that its key had was deleted: its values are another row's
        if not known:
            self.blocked[key] = self.events.offset[i]
            out.pending.append(i)
            out.awaited[i] = self.ids[i]
            return False
        needed = missing if upserts is None else [c for c in missing if c not in upserts]
        bases = {column: self._base(column, ref) for column in missing}
        lacking = [column for column in needed if bases[column] < 0]
        if lacking and self.policy.on_unresolved == "dead_letter":
            self.unresolved[i] = lacking[0]
            return False
        for column, base in bases.items():
            self.origin[column][i] = base
            update = batch.updates.get(column)
            if update is not None and i in update.changes and base >= 0:
                # The event's own value, once it is made from that row's.
                out.bases[column][i] = base
                self.origin[column][i] = i
        self.filled += len(missing)
        if self.trace is not None:
            version = self.events.version[ref] if 0 <= ref < len(batch) else row.version
            self.trace.filled[self.events.offset[i]] = Decision("filled", ", ".join(missing), version=version)
        return True

    def _base(self, column: str, ref: int) -> int:
        """The row that holds the value which an event leaves out, -1 if none does.

        The column may be younger than the row, or may have been left out when that was stored: it is null then, or has
        the type's zero.
        """
        base = self._origin(column, ref) if ref >= 0 else -1
        if base >= 0 and self.scope.omits_long:
            if column not in self.long:
                self.long[column] = self.out.pool.long(column)
            return base if self.long[column][base] else -1
        return base

    def _handed(self, key: HandoverId) -> tuple[bool, int]:
        """Whether the row of this key change was handed over, and its number."""
        # What the store holds comes first: the first entry stays, whatever is delivered again.
        if key in self.handed:
            return True, self.handed[key]
        if key in self.local:
            return True, self.local[key]
        return False, -1

    def _delete(self, i: int, row: KeyRow) -> bool:
        """Whether to write the delete: not that of a key's former owner, whose successor stays."""
        out, events = self.out, self.events
        half = i in self.ids
        if half and events.delete_half[i] and self._carried(i):
            former = self.dependent.former_id(i)
            if former in self.handed:
                row.live, row.former = 2, self.handed[former]
        leaving = row.former if row.live == 2 else row.ref
        if half and self.scope.omits_values:
            self.local[self.ids[i]] = leaving
            self._hand_over(self.ids[i], leaving)
        if row.live == 2 and events.delete_half[i]:
            # The row that took the key stays.
            row.live, row.former = 1, -1
            owner = self._close(events.key[i], i)
            below = to_int(self.chunk.order.leaving, owner) if owner is not None else max(row.version - 1, 0)
            out.swapped.append(Swapped(i, leaving, below))
            out.settled.add(self.chunk.key_bytes(i))
            out.counts["swapped"] += 1
            if self.trace is not None:
                self.trace.note(events.offset[i], "handed over", "another row has taken the key before")
            return False
        if self.image[i] < 0:
            self.image[i] = row.ref
            for column in self.batch.unavailable:
                self.origin[column][i] = self._origin(column, row.ref)
        if self.previous[i] < 0:
            self.previous[i] = row.ref
        row.live = 0
        return True

    def _hand_over(self, key: HandoverId, ref: int) -> None:
        self.out.handover.append((key, ref))
        for column in self.batch.unavailable:
            origin = self._origin(column, ref) if ref >= 0 else -1
            self.out.handover_origin.setdefault(column, []).append(origin)

    def keep_open_swaps(self) -> None:
        """Remember the keys that are still doubled when the chunk ends; their former rows were handed over."""
        chunk = self.chunk
        self.out.doubled.update({chunk.key_bytes(i): chunk.inner(i) for i in self.open_swaps.values()})

    def report_unresolved(self) -> None:
        """Report the events that stay unresolved, except those that the chunk itself outdates.

        An event whose row is gone from the table is met when a chunk is applied a second time. A later whole image
        or delete of its key makes it meaningless.
        """
        if not self.unresolved:
            return
        coded = self.chunk.coded
        whole = np.flatnonzero(self.out.apply & ((self.batch.op == Op.DELETE) | ~self.dependent.partial))
        latest = np.full(coded.count, -1, dtype=np.int64)
        latest[coded.codes[whole]] = whole
        for i, column in self.unresolved.items():
            if latest[coded.codes[i]] > i:
                self.out.counts["superseded"] += 1
            else:
                self.out.bad.append(self._unresolved(i, column))

    def _unresolved(self, i: int, column: str) -> BadRecord:
        source = source_for(self.batch.connector)
        why = "holds the unavailable-value placeholder"
        if source is STATED:
            why = "is null in the update, the table's column cannot hold null"
        elif is_document_source(source):
            why = "is not stated by the update, which says only what it changed"
        reason = f"column {column!r} {why}, and no earlier value of this row is known"
        return BadRecord(int(self.batch.source_index[i]), reason, "unresolved", column)


def _stored_rows(out: Resolved, scope: Scope) -> dict[int, KeyRow]:
    """The newest stored row of each key that was looked up."""
    rows: dict[int, KeyRow] = {}
    if out.stored is None or out.stored_codes is None or not len(out.stored_codes):
        return rows
    codes = out.stored_codes.tolist()
    versions = out.stored_versions or [-1] * len(codes)
    for ref, (key, version, deleted) in enumerate(zip(codes, versions, _deleted(out, scope), strict=True)):
        now = rows.get(key)
        if now is None or version >= now.version:
            live = 0 if deleted else 1
            rows[key] = KeyRow(out.stored_start + ref, live, version, stored_live=live)
    return rows


def _deleted(out: Resolved, scope: Scope) -> list[bool]:
    assert out.stored is not None
    rows = out.stored.rows
    if scope.deleted is None:
        return [False] * rows.num_rows
    column, value = scope.deleted
    return list((rows.column(column).to_numpy() == value).tolist())


def _handed_over(
    dependent: Dependent, rows: Mapping[int, KeyRow], out: Resolved, handover: Handover | None
) -> dict[HandoverId, int]:
    """The rows that create halves need and no delete half of this chunk hands over; one query. -1 for unknown rows."""
    if handover is None or dependent.lists is None:
        return {}
    ids = _asked(dependent, dependent.lists, rows)
    if not ids:
        return {}
    found = handover.get(ids)
    names = dependent.chunk.batch.after.column_names
    start = out.pool.add(found.rows.select(names)) if found.rows.num_rows else 0
    out.counts["handed_over"] += len(found.found)
    return {key: (start + row if row >= 0 else -1) for key, row in found.found.items()}


def _asked(dependent: Dependent, events: EventLists, rows: Mapping[int, KeyRow]) -> list[HandoverId]:
    chunk, blocked = dependent.chunk, dependent.blocked
    ids: list[HandoverId] = []
    for i in dependent.events.tolist():
        key = events.key[i]
        if i not in dependent.ids or (key in blocked and events.offset[i] >= blocked[key]):
            continue
        if events.delete_half[i]:
            if chunk.key_bytes(i) in chunk.left.doubled:
                ids.append(dependent.former_id(i))
            continue
        if events.partial[i]:
            ids.append(dependent.ids[i])
        row = rows.get(key)
        # The table holds something of this event already, or a later row of its key.
        stored = row is not None and row.version >= to_int(chunk.order.leaving, i)
        if events.swaps[i] and stored:
            ids.append(dependent.former_id(i))
    return ids
