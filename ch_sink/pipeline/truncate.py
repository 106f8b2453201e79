"""Truncates of the source table: refused, ignored, or turned into a barrier at which the rows are deleted."""

from collections.abc import Iterable

import numpy as np

from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Floor, Op
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.target import Target

__all__ = ["expect_one_source", "refuse_or_ignore", "truncate_barrier"]


def refuse_or_ignore(batch: ChangeBatch, order: Sequenced, target: Target) -> None:
    """Drop the truncates from the order.

    Raises:
        StreamFailed: a truncate is not a re-delivery, and the policy is to fail.
    """
    truncates = batch.op == Op.TRUNCATE
    found = np.flatnonzero(truncates & order.keep)
    order.keep[truncates] = False
    if not len(found):
        return
    if target.policy.changes.truncate == "fail":
        raise StreamFailed(
            f"the source table was truncated (event at offset {int(batch.offset[found[0]])})",
            hint="set truncate: apply to delete the rows here too, or truncate: ignore to keep them",
        )
    order.skipped["truncates_ignored"] += len(found)


def truncate_barrier(batch: ChangeBatch, order: Sequenced, event: int, target: Target, state: State) -> Barrier:
    """The barrier at a truncate; ``order`` reaches at least to it.

    Raises:
        StreamFailed: versions do not order the truncate against the other partitions, or the topic has several
            source names.
    """
    source = batch.source_name[int(batch.source_code[event])]
    expect_one_source(source, order.state.names, int(batch.offset[event]))
    if not state.alone and order.state.strategy != "source_position":
        raise StreamFailed(
            f"the truncate at offset {int(batch.offset[event])} cannot be applied: the topic has several "
            f"partitions, and versions by {order.state.strategy} do not order them against each other",
            hint="set truncate: ignore, or use a topic with one partition",
        )
    inner = (int(batch.inner[event, 0]) << 64) | int(batch.inner[event, 1])
    version = to_int(order.version, event)
    if not state.alone and target.layout.kind == "wide":
        # Offsets of different partitions do not compare. Rows that the truncate's own transaction wrote after it
        # (TRUNCATE, then INSERT) must stay, whichever partition they are on.
        lift = target.policy.versions.floor
        version = ((version - lift) >> 32 << 32) + lift
    return Barrier(
        "truncate",
        int(batch.offset[event]) + 1,
        version=version,
        floor=Floor(int(order.epoch[event]), to_int(order.commit, event), inner),
        source=source,
    )


def expect_one_source(source: str, names: Iterable[str], offset: int) -> None:
    """Raises StreamFailed if the table has rows of other source names than the one that was truncated."""
    others = sorted(set(names) - {source})
    if others:
        raise StreamFailed(
            f"the truncate of source {source!r} at offset {offset} cannot be applied: the table also has rows of "
            f"{', '.join(map(repr, others[:5]))}, and rows do not say whose they are",
            hint="set truncate: ignore and delete the rows of the truncated table by hand, or give each connector a "
            "topic and a table of its own",
        )
