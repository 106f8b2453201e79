"""Inputs of planning: a decoder, and the ports that planning may query."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import TopicProfile
from ch_sink.order import Trace
from ch_sink.ports import Handover, History, RowLookup

__all__ = ["BatchDecoder", "Ports"]


class BatchDecoder(Protocol):
    """Turns the records of a chunk into change events (`ch_sink.decode.Decoder`)."""

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """The profile for these records: the given one, extended by what these records are the first to show."""
        ...

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """The change events of these records, a function of them and their profile.

        ``waited``: the records come from the pending table; null values among them are deletes.
        """
        ...

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """The values of each Kafka key, which are equal for keys of one row; None for a key that cannot be read."""
        ...


Failed = Callable[[int, int], Collection[int]]
"""First offset, end → offsets of the partition's records that became dead letters and were not applied since."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What planning may query."""

    lookup: RowLookup | None = None
    handover: Handover | None = None
    history: History | None = None
    failed: Failed | None = None
    trace: Trace | None = None
    """Follows one key through the chunks, for `ch_sink explain`."""
