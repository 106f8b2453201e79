"""Decodes records in groups; if a group fails, halving finds the bad records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ch_sink.decode.assemble import Part
from ch_sink.decode.json.columns import Fault
from ch_sink.model.change import BadRecord, Records, SkippedPlaces, UnknownColumn

__all__ = ["Attempt", "Found", "isolate"]

_MOST_PARTS = 8
"""With more pieces than this, all good records are decoded again as one once the bad ones are known."""


@dataclass(slots=True)
class Found:
    """The result of decoding records."""

    parts: list[Part] = field(default_factory=list)
    skipped: SkippedPlaces = field(default_factory=dict)
    nulls: list[int] = field(default_factory=list)
    """Places of the records whose payload is null."""
    unknown: list[UnknownColumn] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        self.parts += other.parts
        self.nulls += other.nulls
        self.unknown += other.unknown
        self.bad += other.bad
        self.skip(other.skipped)

    def skip(self, skipped: SkippedPlaces) -> None:
        """Note records that change no row."""
        for kind, places in skipped.items():
            self.skipped.setdefault(kind, []).extend(places)


Attempt = Callable[[Records, Sequence[int]], Found]
"""Decodes the records at these places together. Raises Fault if one of them is bad."""


def isolate(records: Records, index: Sequence[int], attempt: Attempt) -> Found:
    """Decode the records at these places, except bad ones.

    A record means the same alone and among others, so whether it is bad is always decided alone.
    """
    pieces, found = _halve(records, index, attempt)
    if pieces > _MOST_PARTS:
        failed = {b.index for b in found.bad}
        _, again = _halve(records, [i for i in index if i not in failed], attempt)
        again.bad += found.bad
        again.unknown += [column for column in found.unknown if column not in again.unknown]
        return again
    return found


def _halve(records: Records, index: Sequence[int], attempt: Attempt) -> tuple[int, Found]:
    out = Found()
    pieces = 0
    waiting: list[Sequence[int]] = [index]
    while waiting:
        some = waiting.pop()
        if not len(some):
            continue
        try:
            out.add(attempt(records, some))
            pieces += 1
        except Fault as fault:
            if fault.certain:
                out.bad.extend(fault.certain)
                out.unknown.extend(_pending_changes(fault, records, min(record.index for record in fault.certain)))
                gone = {record.index for record in fault.certain}
                waiting.append([i for i in some if i not in gone])
            elif len(some) == 1:
                out.bad.append(BadRecord(some[0], fault.reason, fault.kind, fault.column))
                out.unknown.extend(_pending_changes(fault, records, some[0]))
            elif len(fault.suspects):
                suspects = set(fault.suspects)
                waiting.extend([i] for i in suspects)
                waiting.append([i for i in some if i not in suspects])
            else:
                middle = len(some) // 2
                waiting.append(some[middle:])
                waiting.append(some[:middle])
    return pieces, out


def _pending_changes(fault: Fault, records: Records, index: int) -> list[UnknownColumn]:
    """Pending column changes of a bad record: its value may fit the column once that has been widened."""
    return [replace(column, first_offset=int(records.offsets[index])) for column in fault.unknown]
