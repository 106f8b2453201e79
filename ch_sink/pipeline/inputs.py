"""What a plan is made with: a decoder, and the ports that may be asked while it is made."""

from dataclasses import dataclass
from typing import Protocol

from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.profile import TopicProfile
from ch_sink.ports import Handover, History, RowLookup

__all__ = ["BatchDecoder", "Ports"]


class BatchDecoder(Protocol):
    """Turns the records of a chunk into change events (`ch_sink.decode.Decoder`)."""

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """The profile by which these records are decoded: the one given, with what they are the first to show."""
        ...

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """The change events of these records, a function of them and their profile.

        ``waited``: the records come from the pending table; null values among them are deletes.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What a plan may ask while it is made."""

    lookup: RowLookup | None = None
    handover: Handover | None = None
    history: History | None = None
