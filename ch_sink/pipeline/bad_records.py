"""Records that cannot be applied: dead letters, or the error that stops the stream."""

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, Records
from ch_sink.ports import DeadLetter

__all__ = ["WITHHELD", "dead_letter_of", "stop"]

WITHHELD = "its value is withheld, since columns are masked or excluded; Kafka has it at this offset"


def stop(bad: BadRecord, records: Records) -> StreamFailed:
    """The error that stops a stream at a bad record."""
    offset = int(records.offsets[bad.index])
    where = f"{records.topic}, partition {records.partition}, offset {offset}"
    column = f", column {bad.column!r}" if bad.column else ""
    return StreamFailed(
        f"the record at {where}{column} cannot be applied: {bad.reason}",
        hint="correct or skip the record, or set on_bad_record: dead_letter",
    )


def dead_letter_of(bad: BadRecord, records: Records, *, withheld: bool = False) -> DeadLetter:
    """The dead letter of a record: the whole record with the reason.

    ``withheld``: without its value and headers, which hold columns that must not be stored.
    """
    i = bad.index
    headers = records.headers[i] if records.headers is not None else None
    value, reason = records.values[i], bad.reason
    if withheld and value is not None:
        # Empty, not null: a null value would be a delete.
        value, headers, reason = b"", None, f"{reason} ({WITHHELD})"
    return DeadLetter(
        records.topic,
        records.partition,
        int(records.offsets[i]),
        int(records.timestamps[i]),
        records.keys[i],
        value,
        headers or (),
        bad.kind,
        bad.column,
        reason,
    )
