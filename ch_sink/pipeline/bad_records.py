"""Records that cannot be applied: as dead letters, or as the error that stops the stream."""

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, Records
from ch_sink.ports import DeadLetter

__all__ = ["letter_of", "stop"]


def stop(bad: BadRecord, records: Records) -> StreamFailed:
    """The error of a stream that stops at bad records."""
    offset = int(records.offsets[bad.index])
    where = f"{records.topic}, partition {records.partition}, offset {offset}"
    column = f", column {bad.column!r}" if bad.column else ""
    return StreamFailed(
        f"the record at {where}{column} cannot be applied: {bad.reason}",
        hint="mend or skip the record, or set on_bad_record: dead_letter",
    )


def letter_of(bad: BadRecord, records: Records) -> DeadLetter:
    """The record, whole, with the reason."""
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
