"""What earlier records of a partition say about later ones: a part of its state."""

from dataclasses import dataclass, replace
from typing import Literal

from ch_sink.model.change import ChangeBatch

__all__ = ["UNREAD", "TopicProfile"]


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """What was learned from the records of one partition, as far as it decides how later bytes are read.

    Decoding is a function of the records and their profile, so that two attempts read the same bytes alike.
    """

    connector: str = ""
    """``source.connector`` of the rows (``flattened`` or ``flattened:<connector>`` if they are no envelopes)."""
    key_columns: tuple[str, ...] = ()
    """Names of the key's columns, in the key's order."""
    key_source: Literal["", "configuration", "row", "null value"] = ""
    """What the key's columns were learned from; empty while nothing has shown them."""
    key_offset: int = -1
    """Offset of the record whose key showed them."""
    documents: bool = False
    """Keys and images are those of documents."""
    id_kind: Literal["", "number", "text"] = ""
    """Kind of the first ``_id`` that is a number or a text which looks like one; empty before any."""
    null_deletes: bool | None = None
    """Whether a null value deletes its key's row (else it is a tombstone): what the last row said. None before any."""
    looked_back: bool = False
    """Records before the first null values were searched for a row."""
    choices: str = ""
    """Digest of the configuration under which all this was learned."""

    @property
    def flattened(self) -> bool:
        """Whether rows come without envelopes."""
        return self.connector.startswith("flattened")

    def after(self, batch: ChangeBatch) -> "TopicProfile":
        """The profile after a batch: the last row decides what a null value means."""
        if not len(batch):
            return self
        deletes = batch.null_deletes is not None and bool(batch.null_deletes[-1])
        return replace(self, connector=batch.connector or self.connector, null_deletes=deletes)


UNREAD = TopicProfile()
"""The profile of a partition of which nothing has been read."""
