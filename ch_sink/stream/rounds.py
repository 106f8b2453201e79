"""Drive several streams through their rounds of tasks together.

A stream's work is a generator: it yields the tasks of a round, is sent their results, and yields the next round, until
it is done. Streams that are ready share one call of the executor; a stream that fails does not end the others.
"""

from collections.abc import Generator, Mapping, Sequence

from ch_sink.errors import ChSinkError
from ch_sink.stream.tasks import Execute, Task, TaskResult

__all__ = ["Rounds", "run_one", "run_together"]

Rounds = Generator[Sequence[Task], Sequence[TaskResult], None]
"""Yields the tasks of a round and is sent their results, in the same order."""


def run_together(streams: Mapping[str, Rounds], execute: Execute) -> dict[str, ChSinkError]:
    """Run the streams to the end of their rounds; returns the error of each stream that failed.

    Raises what the executor raises; no stream has finished then.
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
                except ChSinkError as error:
                    failed[name] = error
                    del ready[name]
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
