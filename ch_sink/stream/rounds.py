"""Drive several streams through their rounds of tasks together.

A stream's work is a generator: it yields the tasks of a round, is sent their results, and yields the next round, until
it is done. Streams that are ready share one call of the executor; a stream that fails does not end the others.
"""

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.stream.tasks import Execute, Task, TaskResult

__all__ = ["Rounds", "as_failure", "run_one", "run_together"]

Rounds = Generator[Sequence[Task], Sequence[TaskResult], None]
"""Yields the tasks of a round and is sent their results, in the same order."""
Ended = Callable[[str, ChSinkError | None], None]


def run_together(
    streams: Mapping[str, Rounds], execute: Execute, ended: Ended = lambda _name, _error: None
) -> dict[str, ChSinkError]:
    """Run the streams to the end of their rounds; returns the error of each stream that failed.

    ``ended`` is called with each stream as soon as it has ended, and its error if it failed. Raises what the executor
    raises; the streams that had not ended before did not finish.
    """
    failed: dict[str, ChSinkError] = {}
    ready = dict(streams)
    answers: dict[str, Sequence[TaskResult] | None] = dict.fromkeys(streams)
    try:
        while ready:
            tasks: dict[str, Sequence[Task]] = {}
            for name, rounds in list(ready.items()):
                try:
                    answer = answers[name]
                    tasks[name] = next(rounds) if answer is None else rounds.send(answer)
                except StopIteration:
                    del ready[name]
                    ended(name, None)
                except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
                    del ready[name]
                    failed[name] = as_failure(name, error)
                    ended(name, failed[name])
            everything = [task for of_stream in tasks.values() for task in of_stream]
            results = list(execute(everything)) if everything else []
            for name, of_stream in tasks.items():
                answers[name], results = results[: len(of_stream)], results[len(of_stream) :]
    finally:
        for rounds in ready.values():
            rounds.close()
    return failed


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
        f"stream {stream} stopped: {type(error).__name__}: {first}", hint="run again with --debug for the whole trace"
    )
    failure.trace = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    return failure
