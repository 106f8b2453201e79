"""Drive several streams through their rounds of tasks together.

A stream's work is a generator: it yields what its ledger is to record, or the tasks of a round, is sent the answer or
the results, and yields the next step, until it is done. Streams that are ready share one write and one call of the
executor; a stream that fails does not end the others.
"""

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.ports import FinishedRange, Ledger, RangeIntent
from ch_sink.stream.tasks import Execute, Task, TaskResult


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


Rounds = Generator[Write | Sequence[Task], Any, None]
"""Yields a write and is sent its answer, or the tasks of a round and is sent their results, in the same order."""
Ended = Callable[[str, ChSinkError | None], None]


def run_together(
    streams: Mapping[str, Rounds],
    execute: Execute,
    ended: Ended = lambda _name, _error: None,
    write: WriteAll = write_each,
) -> dict[str, ChSinkError]:
    """Run the streams to the end of their rounds; returns the error of each stream that failed.

    ``ended`` is called with each stream as soon as it has ended, and its error if it failed. Raises what the executor
    raises; the streams that had not ended before did not finish.
    """
    failed: dict[str, ChSinkError] = {}
    ready = dict(streams)
    answers: dict[str, Any] = dict.fromkeys(streams)
    tasks: dict[str, Sequence[Task]] = {}
    try:
        while ready:
            writes: dict[str, Write] = {}
            for name, answer in answers.items():
                try:
                    step = _next(ready[name], answer)
                except StopIteration:
                    del ready[name]
                    ended(name, None)
                except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
                    del ready[name]
                    failed[name] = as_failure(name, error)
                    ended(name, failed[name])
                else:
                    if isinstance(step, Intend | Record):
                        writes[name] = step
                    else:
                        tasks[name] = step
            if writes:
                answers = dict(zip(writes, write(list(writes.values())), strict=True))
            else:
                answers, tasks = _results(tasks, execute), {}
    finally:
        for rounds in ready.values():
            rounds.close()
    return failed


def _next(rounds: Rounds, answer: Any) -> Write | Sequence[Task]:
    return rounds.throw(answer) if isinstance(answer, ChSinkError) else rounds.send(answer)


def _results(tasks: Mapping[str, Sequence[Task]], execute: Execute) -> dict[str, Sequence[TaskResult]]:
    """The results of the tasks of each stream."""
    everything = [task for of_stream in tasks.values() for task in of_stream]
    results = iter(execute(everything) if everything else ())
    return {name: list(islice(results, len(of_stream))) for name, of_stream in tasks.items()}


def run_one(rounds: Rounds, execute: Execute) -> None:
    """Run one stream's rounds. Raises its error, or what the executor raises."""
    for error in run_together({"": rounds}, execute).values():
        raise error


def as_failure(stream: str, error: Exception) -> ChSinkError:
    """The error that ends a stream; one that was not raised on purpose keeps its trace for ``--debug``."""
    if isinstance(error, ChSinkError):
        return error
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:400]
    failure = StreamFailed(
        f"stream {stream} stopped: {type(error).__name__}: {first}", hint="Run again with --debug for the whole trace."
    )
    failure.trace = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    return failure
