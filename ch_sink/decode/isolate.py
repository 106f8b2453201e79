"""Decodes records in groups; if a group fails, halving finds the bad records.

Whatever decoding raises is about a record, and that record is bad: no bytes of one record stop a stream. What is not
about a record has types of its own (a server that does not answer, a table that cannot be served) and is passed on. An
exception that nobody expected is bad records of the kind ``unexpected``, and its first traceback is in the log: if it
is a defect that every record meets, ``errors.max_rate`` stops the stream, and the letters can be retried once it is
fixed.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ch_sink.decode.assemble import Part
from ch_sink.decode.json.columns import Fault
from ch_sink.errors import ChSinkError, RecordError
from ch_sink.model.change import BadRecord, Records, SkippedPlaces, UnknownColumn

log = logging.getLogger("ch_sink")

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
"""Decodes the records at these places together. Raises Fault, or anything `of_record`, if one of them is bad."""
_shown: set[str] = set()
"""Where unexpected exceptions came from that are in the log already."""


def of_record(error: Exception) -> bool:
    """Whether what decoding raised is about the records, not about the table, a server or the machine's files."""
    return isinstance(error, RecordError) or not isinstance(error, (ChSinkError, OSError))


def _as_fault(error: Exception, records: Records) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, RecordError):
        return Fault(error.message)
    if isinstance(error, RecursionError):
        return Fault("its values are nested too deeply")
    # Not the error's text: it may show a value of a column that is masked.
    kind, where = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}, line {where.lineno}"
    if place not in _shown:
        _shown.add(place)
        trace = "".join(traceback.format_tb(error.__traceback__))
        log.error("decoding a record of %s raised %s, which was not expected:\n%s", records.topic, kind, trace)
    return Fault(f"decoding raised an unexpected {kind} ({place})", "unexpected")


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
        except Exception as error:
            if not of_record(error):
                raise
            fault = _as_fault(error, records)
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
