"""What streams write to their ledgers between tasks, as values, so that one insert may carry those of many streams."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ch_sink.errors import ChSinkError
from ch_sink.ports import FinishedRange, Ledger, RangeIntent

__all__ = ["Intend", "Record", "Write", "WriteAll", "Written", "write_each"]


@dataclass(frozen=True, slots=True)
class Intend:
    """See Ledger.intents; the answer is the ranges with their attempts."""

    ledger: Ledger
    ranges: Sequence[RangeIntent]


@dataclass(frozen=True, slots=True)
class Record:
    """See Ledger.results; the answer is None."""

    ledger: Ledger
    results: Sequence[FinishedRange]


Write = Intend | Record
Written = list[RangeIntent] | None | ChSinkError
"""The answer, or why nothing was written."""
WriteAll = Callable[[Sequence[Write]], Sequence[Written]]
"""Writes all of them and returns an answer for each. One that fails does not keep others from being written."""


def write_each(writes: Sequence[Write]) -> list[Written]:
    """Write one after the other."""
    return [_one(write) for write in writes]


def _one(write: Write) -> Written:
    try:
        if isinstance(write, Intend):
            return write.ledger.intents(write.ranges)
        write.ledger.results(write.results)
    except ChSinkError as error:
        return error
    return None
