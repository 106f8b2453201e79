"""What earlier records of a partition say about later ones: a part of its state."""

from dataclasses import dataclass, replace
from typing import Literal

from ch_sink.model.change import ChangeBatch

__all__ = ["UNREAD", "TopicProfile"]


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """What was learned from the records of one partition and decides how later ones are read.

    Decoding is a function of the records and their profile, so that two attempts decode the same bytes in the same way.
    """

    connector: str = ""
    """``source.connector`` of the rows (``flattened`` or ``flattened:<connector>`` if they are no envelopes)."""
    key_columns: tuple[str, ...] = ()
    """Names of the key's columns, in the key's order."""
    key_source: Literal["", "configuration", "row", "null value"] = ""
    """What the key's columns were learned from; empty if they are not known yet."""
    key_offset: int = -1
    """Offset of the record from whose key they were learned."""
    documents: bool = False
    """Whether keys and images are those of documents."""
    id_kind: Literal["", "number", "text"] = ""
    """Kind of the first ``_id`` that is a number or a text which looks like one; empty before the first."""
    null_deletes: bool | None = None
    """Whether a null value deletes its key's row (else it is a tombstone), as the last row says; None before it."""
    looked_back: bool = False
    """Whether the records before the first null values have been searched for a row."""
    choices: str = ""
    """Digest of the configuration under which this profile was learned."""

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
