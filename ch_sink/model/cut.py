"""Cuts of a decoded batch: its first records, or a range of its events, without decoding anything again."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import ChangeBatch, Updates

__all__ = ["event_range", "head"]

Masks = dict[str, npt.NDArray[np.bool_]]


def head(batch: ChangeBatch, place: int, offset: int) -> ChangeBatch:
    """The batch of the records before this offset, events and all others; ``place``: how many records these are.

    ``clamped`` stays that of the whole batch: its values are counted by column, not by record.
    """
    cut = event_range(batch, 0, int(np.searchsorted(batch.source_index, place)))
    skipped = {kind: [at for at in places if at < place] for kind, places in batch.skipped.items()}
    cut.skipped = {kind: places for kind, places in skipped.items() if places}
    cut.bad = [bad for bad in batch.bad if bad.index < place]
    cut.unknown = [column for column in batch.unknown if column.first_offset < offset]
    return cut


def event_range(batch: ChangeBatch, start: int, end: int) -> ChangeBatch:
    """The events [start, end) of a batch. Columns are views; what concerns records stays that of the whole."""
    if (start, end) == (0, len(batch)):
        return replace(batch)
    part = slice(start, end)
    return replace(
        batch,
        source_index=batch.source_index[part],
        offset=batch.offset[part],
        op=batch.op[part],
        commit=batch.commit[part],
        inner=batch.inner[part],
        has_commit=batch.has_commit[part],
        source_ts=batch.source_ts[part],
        source_code=batch.source_code[part],
        snapshot=batch.snapshot[part],
        half=batch.half[part],
        key=None if batch.key is None else batch.key.slice(start, end - start),
        after=batch.after.slice(start, end - start),
        before=None if batch.before is None else batch.before.slice(start, end - start),
        has_before=batch.has_before[part],
        unavailable=_masks(batch.unavailable, part),
        absent=_masks(batch.absent, part),
        absent_before=_masks(batch.absent_before, part),
        null_deletes=None if batch.null_deletes is None else batch.null_deletes[part],
        updates={name: _updates(found, start, end) for name, found in batch.updates.items()},
    )


def _masks(masks: Masks, part: slice) -> Masks:
    cut = {name: mask[part] for name, mask in masks.items()}
    return {name: mask for name, mask in cut.items() if mask.any()}


def _updates(found: Updates, start: int, end: int) -> Updates:
    return Updates(
        found.base,
        {event - start: change for event, change in found.changes.items() if start <= event < end},
        {event - start: change for event, change in found.otherwise.items() if start <= event < end},
    )
