"""What a plan is made with: a decoder, and the ports that may be asked while it is made."""

from dataclasses import dataclass
from typing import Protocol

from ch_sink.model.change import ChangeBatch, Records
from ch_sink.ports import Handover, History, RowLookup

__all__ = ["BatchDecoder", "Ports"]


class BatchDecoder(Protocol):
    """Turns the records of a chunk into change events (`ch_sink.decode.Decoder`)."""

    def decode(self, records: Records, *, waited: bool = False) -> ChangeBatch:
        """``waited``: the records come from the pending table; null values among them are deletes."""
        ...

    @property
    def undecided(self) -> bool:
        """Whether the last chunk had null values, and no row seen so far tells whether they are deletes."""
        ...

    def key_columns(self) -> tuple[str, ...]:
        """Names of the key's columns, known after the first record with a key."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What a plan may ask while it is made."""

    lookup: RowLookup | None = None
    handover: Handover | None = None
    history: History | None = None
