"""Records that cannot be applied: dead letters, or the error that stops the stream."""

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, Records
from ch_sink.ports import DeadLetter

__all__ = ["dead_letter_of", "stop"]


def stop(bad: BadRecord, records: Records) -> StreamFailed:
    """The error that stops a stream at a bad record."""
    offset = int(records.offsets[bad.index])
    where = f"{records.topic}, partition {records.partition}, offset {offset}"
    column = f", column {bad.column!r}" if bad.column else ""
    return StreamFailed(
        f"the record at {where}{column} cannot be applied: {bad.reason}",
        hint="correct or skip the record, or set on_bad_record: dead_letter",
    )


def dead_letter_of(bad: BadRecord, records: Records) -> DeadLetter:
    """The dead letter of a record: the whole record with the reason."""
    i = bad.index
    headers = records.headers[i] if records.headers is not None else None
    return DeadLetter(
        records.topic,
        records.partition,
        int(records.offsets[i]),
        int(records.timestamps[i]),
        records.keys[i],
        records.values[i],
        headers or (),
        bad.kind,
        bad.column,
        bad.reason,
    )
