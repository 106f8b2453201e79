"""Waiting changes of a stream whose columns are masked or excluded: stored without their content, which Kafka has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ch_sink.errors import DataLoss
from ch_sink.model.change import Records
from ch_sink.ports import Fence, Pending, PendingRecord

__all__ = ["WithheldPending"]

_WITHHELD = b""
"""In place of a value; null would be a delete, and no change has an empty one."""


@dataclass(frozen=True, slots=True)
class WithheldPending:
    """A Pending that keeps neither values nor headers."""

    inner: Pending
    read: Callable[[int, int], Records | None]
    """The record at an offset of a partition, None if the topic does not hold it."""

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        """See Pending."""
        bare = [r if r.value is None else replace(r, value=_WITHHELD, headers=()) for r in records]
        self.inner.put(topic_id, partition, bare, token, fence=fence)

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """See Pending. Raises DataLoss if Kafka does not hold a record that waits."""
        found = self.inner.open(topic_id, partition)
        return [self._whole(partition, r) if r.swap is None and r.value == _WITHHELD else r for r in found]

    def places(self) -> dict[tuple[str, int], int]:
        """See Pending."""
        return self.inner.places()

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """See Pending."""
        self.inner.resolve(topic_id, partition, offsets)

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """See Pending."""
        return self.inner.released(topic_id, partition, first, end)

    def _whole(self, partition: int, record: PendingRecord) -> PendingRecord:
        found = self.read(partition, record.offset)
        if (
            found is None
            or not len(found)
            or (found.keys[0], int(found.timestamps[0])) != (record.key, record.timestamp)
        ):
            raise DataLoss(
                f"the change at offset {record.offset} of partition {partition} waits for values of another row, and "
                "the topic no longer holds it; since columns are masked or excluded, it was not stored",
                hint="Fill the table anew: `ch_sink resync CONFIG --apply`.",
            )
        headers = found.headers[0] if found.headers is not None else None
        return replace(record, value=found.values[0], headers=headers or ())
