"""The dependent events of a chunk: those that do not say everything themselves, and all others of their keys.

Some say only which part of a document changed: their values are made from earlier ones (`apply_updates`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.parts import of_record
from ch_sink.errors import DecodeError
from ch_sink.merge.resolved import UNSET, Bools, KeyCodes, Resolved, Scope, flat
from ch_sink.model.change import BadRecord, ChangeBatch, Half, HandoverId, Op, Records
from ch_sink.order import Sequenced
from ch_sink.order.version import to_int, to_ints
from ch_sink.sources import FLATTENED

Index = npt.NDArray[np.int64]

_FORMER = (1 << 64) - 1  # inner position that no change has: marks the former row of a swapped key


@dataclass(frozen=True, slots=True)
class EventLists:
    """The fields of each event that the walk reads, as lists: reading one value of an array costs ten times as much."""

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


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Changes that earlier chunks left open, by Kafka key."""

    waiting: Mapping[bytes, int] = field(default_factory=dict)
    """Keys whose earlier changes wait for a hand-over, with the offset of the first one; later changes join them."""
    doubled: Mapping[bytes, int] = field(default_factory=dict)
    """Keys that have two live rows (a swap in mid-transaction), with the inner position of the create half that
    opened the swap."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's events and what earlier chunks left open."""

    batch: ChangeBatch
    records: Records
    order: Sequenced
    coded: KeyCodes
    left: LeftOpen

    def key_bytes(self, i: int) -> bytes:
        return self.records.keys[int(self.batch.source_index[i])] or b""

    def inner(self, i: int) -> int:
        """Position of the event inside its transaction, 128 bits."""
        return to_int(self.batch.inner, i)

    def transaction(self, i: int) -> int:
        """The commit position, shared by a transaction's events. -1 if they state none, as a stream's first do."""
        return to_int(self.order.transaction, i) if self.batch.has_commit[i] else -1

    def going_on(self, source: int) -> set[int]:
        """The transactions of this source that may go on when the chunk ends. An event that states none ends none."""
        mine = np.flatnonzero(self.batch.source_code == source)
        stated = mine[self.batch.has_commit[mine]]
        return {self.transaction(int(last[-1])) for last in (mine, stated) if len(last)}


@dataclass(frozen=True, slots=True)
class Dependent:
    """The dependent events, and what is known of them before they are walked."""

    chunk: Chunk
    events: Index
    """In Kafka order."""
    partial: Bools
    """Events, of the whole chunk, that leave out a value."""
    ids: Mapping[int, HandoverId]
    """Identity of each half of a key change, by event."""
    blocked: Mapping[int, int]
    """Key number → offset from which on its changes wait."""
    lists: EventLists | None
    """None if there is no dependent event."""

    def former_id(self, i: int) -> HandoverId:
        """The id under which the row of a key's former owner is kept while a swap goes on over a chunk's end.

        Named by the key and by the create half that opened the swap: a transaction may swap a key twice. A delete
        half asks only if the last chunk left its key doubled.
        """
        chunk, of = self.chunk, self.ids[i]
        high, low = of.commit_high, of.commit_low
        if not chunk.batch.has_commit[i]:
            high, low = high >> 16 << 16, 0  # a bound of its own, which the transaction does not share
        key = chunk.key_bytes(i)
        opener = chunk.inner(i) if chunk.batch.half[i] == Half.CREATE else chunk.left.doubled[key]
        digest = sha256(opener.to_bytes(16, "big") + key).digest()
        return HandoverId(of.source, high, low, _FORMER, int.from_bytes(digest[:8], "big"))


def dependent_events(chunk: Chunk, scope: Scope, placed: Bools | None = None) -> Dependent:
    """All events of the keys that have an event which does not say everything itself.

    ``placed``: events of which only the walk finds the place that they leave; None where rows cannot move.
    """
    batch, coded, keep = chunk.batch, chunk.coded, chunk.order.keep
    partial = np.zeros(len(batch), dtype=np.bool_)
    for mask in batch.unavailable.values():
        partial |= mask
    ids = _ids(batch) if scope.omits_values or scope.deferrable else {}
    swaps = _swaps(chunk) if scope.deferrable else np.zeros(len(batch), dtype=np.bool_)
    needs = (_needs(chunk, scope, partial, ids, placed) | swaps) & keep
    chosen = np.zeros(coded.count, dtype=np.bool_)
    chosen[coded.codes[needs]] = True
    if chunk.left.doubled:
        for i in np.flatnonzero(batch.half == Half.DELETE).tolist():
            if chunk.key_bytes(i) in chunk.left.doubled:
                needs[i] = True  # with the version of the row that stays
                chosen[coded.codes[i]] = True
    blocked: dict[int, int] = {}
    if chunk.left.waiting:
        for i in range(len(batch)):
            since = chunk.left.waiting.get(chunk.key_bytes(i))
            if since is not None:
                chosen[coded.codes[i]] = True
                blocked[int(coded.codes[i])] = since
    if not chosen.any():
        return Dependent(chunk, np.zeros(0, dtype=np.int64), partial, ids, blocked, None)
    lists = EventLists(
        coded.codes.tolist(),
        batch.offset.tolist(),
        to_ints(chunk.order.version),
        (batch.op == Op.DELETE).tolist(),
        (batch.op == Op.CREATE).tolist(),
        (batch.half == Half.DELETE).tolist(),
        (batch.half == Half.CREATE).tolist(),
        partial.tolist(),
        needs.tolist(),
        swaps.tolist(),
    )
    return Dependent(chunk, np.flatnonzero(chosen[coded.codes] & keep), partial, ids, blocked, lists)


def _ids(batch: ChangeBatch) -> dict[int, HandoverId]:
    """Identity of every half of a key change, by event.

    The source time is part of it: a restored database may use a position a second time. Of flattened events either half
    may state none.
    """
    timed = not batch.connector.startswith(FLATTENED)
    # Flattened events may state no position at all: nothing joins the halves of their key changes.
    placed = batch.commit.any(axis=1) | batch.inner.any(axis=1)
    return {
        i: HandoverId(
            batch.source_name[int(batch.source_code[i])],
            (max(int(batch.source_ts[i]), 0) << 16 if timed else 0) | int(batch.commit[i, 0]),
            int(batch.commit[i, 1]),
            int(batch.inner[i, 0]),
            int(batch.inner[i, 1]),
        )
        for i in np.flatnonzero((batch.half != Half.NONE) & placed).tolist()
    }


def _needs(chunk: Chunk, scope: Scope, partial: Bools, ids: Mapping[int, HandoverId], placed: Bools | None) -> Bools:
    """Events that need another row: for values that they leave out, to hand values over, for the place they leave."""
    batch = chunk.batch
    needs = partial.copy()
    if scope.omits_values:
        whole_creates = {ids.get(i) for i in np.flatnonzero((batch.half == Half.CREATE) & ~partial).tolist()}
        for i in np.flatnonzero(batch.half == Half.DELETE).tolist():
            needs[i] |= i in ids and ids[i] not in whole_creates
    if scope.history:
        # A delete has its row's last values whatever else is in the chunk, so a retry stores the same bytes.
        needs |= batch.op == Op.DELETE
    if placed is not None:
        needs |= placed
    return needs


def _swaps(chunk: Chunk) -> Bools:
    """Create halves that the delete of a former owner of the same key may follow."""
    batch, keep, codes = chunk.batch, chunk.order.keep, chunk.coded.codes
    out = np.zeros(len(batch), dtype=np.bool_)
    creates = np.flatnonzero((batch.half == Half.CREATE) & keep)
    if not len(creates):
        return out
    deletes = {
        (int(codes[i]), chunk.transaction(i)) for i in np.flatnonzero((batch.half == Half.DELETE) & keep).tolist()
    }
    going_on = {int(code): chunk.going_on(int(code)) for code in np.unique(batch.source_code[creates])}
    for i in creates.tolist():
        at = chunk.transaction(i)
        if at in going_on[int(batch.source_code[i])] or (int(codes[i]), at) in deletes:
            out[i] = True
    return out


def keys_to_look_up(dependent: Dependent, scope: Scope) -> Index:
    """Keys whose stored row matters: no whole image of them comes first in the chunk.

    What an earlier attempt at the chunk left waiting counts like the rest of it: the changes before it must find the
    values that they found then.
    """
    events = dependent.lists
    if events is None:
        return dependent.events
    start = int(dependent.chunk.batch.offset[0])
    blocked = {key for key, since in dependent.blocked.items() if since < start}
    known: set[int] = set()
    wanted: set[int] = set()
    for i in dependent.events.tolist():
        key = events.key[i]
        if key in known or key in wanted or key in blocked:
            continue
        handed = scope.omits_values and events.create_half[i]
        if events.needs[i] and not (handed and not scope.places and not events.swaps[i]):
            wanted.add(key)
        elif not events.delete[i] and (handed or not events.partial[i]):
            known.add(key)
    return np.array(sorted(wanted), dtype=np.int64)


def apply_updates(batch: ChangeBatch, out: Resolved) -> None:
    """Make the values of the events whose base the walk has found, in Kafka order, and put them into the pool.

    An event whose value cannot be made is bad. It changes nothing: what follows starts from the row before
    it, as it would in a later chunk.
    """
    if not any(out.bases.values()):
        return
    made = {column: _Made(column, batch, out) for column in batch.updates}
    # A column that is made from another one needs that one's new value first.
    columns = sorted(made, key=lambda column: batch.updates[column].base != column)
    for i in sorted({i for bases in out.bases.values() for i in bases}):
        for column in columns:
            if i not in out.bases[column]:
                continue
            try:
                made[column].put(i, _value(batch, out, made, column, i))
            except Exception as error:
                if not of_record(error):
                    raise
                why = error.message if isinstance(error, DecodeError) else type(error).__name__
                out.apply[i] = False
                reason = f"column {column!r}: the update cannot be applied to the stored value: {why}"
                out.bad.append(BadRecord(int(batch.source_index[i]), reason, "unresolved", column))
                _pass_over(i, out)
                break
    for values in made.values():
        values.replace()


def _value(batch: ChangeBatch, out: Resolved, made: Mapping[str, "_Made"], column: str, i: int) -> pa.Array:
    """The new value of a column in an event. Raises DecodeError."""
    update = batch.updates[column]
    own = out.bases[column][i]
    if update.base == column:
        return update.changes[i](made[column].value(own))
    base = made[update.base].value(i)
    if not base and i in update.otherwise:
        return update.otherwise[i](made[column].value(own))
    return update.changes[i](base)


def _pass_over(i: int, out: Resolved) -> None:
    """Let everything after an event that is not applied start from the row that its key had before it."""
    before = int(out.previous[i])
    later = np.flatnonzero(out.codes == out.codes[i])
    later = later[later > i]
    for refs in (out.image, out.previous):
        refs[later[refs[later] == i]] = before
    for column, refs in out.origin.items():
        there = int(refs[before]) if 0 <= before < len(refs) and refs[before] != UNSET else before
        refs[later[refs[later] == i]] = there
        bases = out.bases.get(column, {})
        bases.update({e: there for e in later.tolist() if bases.get(e) == i})


class _Made:
    """One column's new values."""

    def __init__(self, column: str, batch: ChangeBatch, out: Resolved) -> None:
        self._column, self._batch, self._out = column, batch, out
        self._before: pa.Array = out.pool.column(column)
        self._at: dict[int, int] = {}
        self._made: list[pa.Array] = []

    def put(self, event: int, value: pa.Array) -> None:
        self._at[event] = len(self._made)
        self._made.append(value)

    def value(self, row: int) -> Any:
        """The current value of a row of the pool."""
        if row in self._at:
            return self._made[self._at[row]][0].as_py()
        return self._before[row].as_py()

    def replace(self) -> None:
        """Put the new values into the pool's first segment."""
        if not self._made:
            return
        own = flat(self._batch.after.column(self._column))
        where = np.arange(len(own))
        where[list(self._at)] = len(own) + np.fromiter(self._at.values(), dtype=np.int64)
        values = pa.concat_arrays([own, *(part.cast(own.type) for part in self._made)])
        self._out.pool.replace(self._column, values.take(pa.array(where)))
