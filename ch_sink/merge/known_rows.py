"""Rows of keys that the table or the hand-over knows before the walk begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from ch_sink.merge.dependent import Dependent, EventLists
from ch_sink.merge.resolved import Resolved, Scope
from ch_sink.model.change import HandoverId
from ch_sink.order.version import to_int
from ch_sink.ports import Handover

__all__ = ["KeyRow", "handed_over", "stored_rows"]


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


def stored_rows(out: Resolved, scope: Scope) -> dict[int, KeyRow]:
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


def handed_over(
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
            if chunk.key_bytes(i) in chunk.doubled:
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
