"""The changes of one partition that wait for a hand-over, by key, and the swaps of keys that released ones opened.

Only the first change of a key waits for a hand-over; the others wait behind it. So one question for the first ones'
hand-overs says which keys can move, however many changes wait.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ch_sink.model.change import HandoverId
from ch_sink.order import State
from ch_sink.ports import AppliedSwap, PendingRecord


class WaitingChanges:
    """The waiting changes of one partition. ``len`` counts them."""

    def __init__(self, records: Iterable[PendingRecord] = ()) -> None:
        """``records``: as the pending table holds them."""
        self.replace(records)

    def replace(self, records: Iterable[PendingRecord]) -> None:
        """Forget everything and begin with these."""
        self._records: dict[int, PendingRecord] = {}
        self._by_key: dict[bytes, list[int]] = {}
        self._awaited: dict[bytes, HandoverId] = {}
        self._swaps: dict[int, PendingRecord] = {}
        found = list(records)
        self._swaps = {r.offset: r for r in found if r.swap is not None}
        self.add([r for r in found if r.swap is None], {})

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, offset: int) -> bool:
        return offset in self._records

    @property
    def settled(self) -> bool:
        """Neither changes nor swaps are left."""
        return not self._records and not self._swaps

    def add(self, records: Sequence[PendingRecord], awaited: Mapping[int, HandoverId]) -> None:
        """These wait from now on. ``awaited``: offset → the hand-over for which the record itself waits."""
        for record in records:
            self._records[record.offset] = record
            self._by_key.setdefault(record.key or b"", []).append(record.offset)
            self._swaps.pop(record.offset, None)
        for key in {r.key or b"" for r in records}:
            self._by_key[key].sort()
        self.note(awaited)

    def note(self, awaited: Mapping[int, HandoverId]) -> None:
        """Note the hand-overs that the first changes of their keys wait for, by offset."""
        for offset, identity in awaited.items():
            if offset in self._records:
                self._awaited[self._records[offset].key or b""] = identity

    def remove(self, offsets: Iterable[int]) -> None:
        """These do not wait any more."""
        for key in {self._records.pop(offset).key or b"" for offset in offsets}:
            self._awaited.pop(key, None)
            left = [offset for offset in self._by_key[key] if offset in self._records]
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]

    def first_below(self, end: int) -> dict[bytes, int]:
        """Key → offset of its first waiting change, if that is below ``end``."""
        return {key: offsets[0] for key, offsets in self._by_key.items() if offsets[0] < end}

    def forget_awaited(self) -> None:
        """Forget what the changes wait for: a truncate may have made them needless, so it is found again."""
        self._awaited.clear()

    def unknown(self) -> list[PendingRecord]:
        """The first change of each key of which it is not known yet for what it waits, by offset."""
        keys = self._by_key.keys() - self._awaited.keys()
        return [self._records[offset] for offset in sorted(self._by_key[key][0] for key in keys)]

    def awaited(self) -> list[HandoverId]:
        """The hand-overs for which changes wait."""
        return list(dict.fromkeys(self._awaited.values()))

    def records(self, offsets: Iterable[int]) -> list[PendingRecord]:
        """These waiting changes."""
        return [self._records[offset] for offset in offsets]

    def behind(self, arrived: Collection[HandoverId], below: int) -> list[PendingRecord]:
        """The changes that need not wait for anything but these hand-overs, with those behind them, by offset.

        ``below``: none from this offset on.
        """
        keys = [key for key in self._by_key if key not in self._awaited or self._awaited[key] in arrived]
        return [self._records[offset] for offset in sorted(o for key in keys for o in self._by_key[key] if o < below)]

    def since_before(self, moment: float, below: int) -> list[PendingRecord]:
        """The changes that have waited since before a moment; of each key, those before the first that has not.

        ``below``: none from this offset on.
        """
        late: list[int] = []
        for offsets in self._by_key.values():
            for offset in offsets:
                if self._records[offset].since >= moment or offset >= below:
                    break
                late.append(offset)
        return [self._records[offset] for offset in sorted(late)]

    def applied(self, swaps: Mapping[int, AppliedSwap]) -> list[PendingRecord]:
        """The entries of released changes that opened swaps, by offset; stored before the changes are resolved."""
        return [replace(self._records[offset], value=None, headers=(), swap=swap) for offset, swap in swaps.items()]

    def has_swaps(self, offsets: Iterable[int]) -> bool:
        """Whether one of these is known as a released change that opened a swap."""
        return any(offset in self._swaps for offset in offsets)

    def closed(self, closers: Mapping[bytes, int]) -> list[PendingRecord]:
        """The entries of open swaps that these deletes close, by Kafka key; ``closers``: their offsets."""
        open_ones = [(e, s) for e, s in _swaps(self._swaps.values()) if s.closed < 0 and (e.key or b"") in closers]
        last = {e.key or b"": (e, s) for e, s in open_ones if e.offset < closers[e.key or b""]}
        return [replace(e, swap=replace(s, closed=closers[key])) for key, (e, s) in last.items()]

    def keep(self, entries: Iterable[PendingRecord]) -> None:
        """Remember these swaps."""
        self._swaps.update({entry.offset: entry for entry in entries})

    def outlived(self, state: State, offset: int) -> list[int]:
        """Offsets of the swaps whose transaction is over as of this offset and state of the partition."""
        here = state.transactions()
        gone = [o for o, e in self._swaps.items() if o < offset and here and (e.epoch, e.commit) not in here]
        for offset in gone:
            del self._swaps[offset]
        return gone

    def with_open_swaps(self, state: State, offset: int) -> State:
        """The state at this offset, with the swaps that released changes before it have opened."""
        if not self._swaps:
            return state
        here = state.transactions()
        known = [e for e in self._swaps.values() if e.offset < offset and (e.epoch, e.commit) in here]
        return _doubled(state, [(e, s) for e, s in _swaps(known) if s.closed < 0 or s.closed >= offset])

    def with_swaps_of(self, queue: Sequence[PendingRecord], state: State) -> State:
        """The state for applying waiting changes, with the swaps that they may close."""
        if not self._swaps:
            return state
        here = {(r.key, r.epoch, r.commit) for r in queue}
        known = [e for e in self._swaps.values() if (e.key, e.epoch, e.commit) in here]
        offsets = {r.offset for r in queue}
        return _doubled(state, [(e, s) for e, s in _swaps(known) if s.closed < 0 or s.closed in offsets])


def _swaps(entries: Iterable[PendingRecord]) -> list[tuple[PendingRecord, AppliedSwap]]:
    return [(e, e.swap) for e in sorted(entries, key=lambda e: e.offset) if e.swap is not None]


def _doubled(state: State, swaps: Sequence[tuple[PendingRecord, AppliedSwap]]) -> State:
    """The state with these swaps, except those that it knows to be closed."""
    doubled = dict(state.doubled)
    for entry, swap in swaps:
        key = (entry.key or b"").hex()
        known = max(int(doubled.get(key, "-1"), 16), int(state.closed.get(key, "-1"), 16))
        if known < swap.inner:
            doubled[key] = f"{swap.inner:x}"
    return replace(state, doubled=doubled)
