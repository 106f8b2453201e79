"""Reading that a signal may end: between two chunks of a topic, or two batches of a source's rows.

A command looks there, and while it waits, whether it is to stop; then what it has made beside the table is removed as
after an error. A step that must not be left half done reads nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk
from ch_sink.ports import History
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.topic import TopicReader

__all__ = ["Check", "StoppableTopic", "never_stops", "until_stopped"]

T = TypeVar("T")

Check = Callable[[], None]
"""Raises what ends the command, if it is to stop."""


def never_stops() -> None:
    """The check of a command that no signal reaches."""


def until_stopped(batches: Iterable[T], check: Check) -> Iterator[T]:
    """The batches, with a look before each."""
    for batch in batches:
        check()
        yield batch


@dataclass(frozen=True, slots=True)
class StoppableTopic:
    """A topic that is read until the command is to stop; see TopicReader."""

    inner: TopicReader
    check: Check

    def state(self, topic: str) -> TopicState:
        self.check()
        return self.inner.state(topic)

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        return until_stopped(self.inner.chunks(task, first), self.check)

    def history(self, partition: int) -> History | None:
        return self.inner.history(partition)
