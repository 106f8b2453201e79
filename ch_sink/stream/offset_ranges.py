"""Offset ranges: arithmetic over starting offsets, what the ledger says, and the topic's watermarks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ch_sink.errors import REFILL, ConfigError, DataLoss
from ch_sink.model.values import TopicState


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of a topic-partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    lost: int
    """Offsets before ``start`` that were dropped before they were read (``on_data_loss: continue``), usually 0."""
    high: int
    """The partition's high watermark when the range was planned."""
    chunk_offsets: int = 0
    """Chunk limits of an earlier attempt at this range; 0: those of the settings."""
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's policies for cases in which records are lost."""

    on_data_loss: Literal["fail", "continue"] = "fail"
    topic_recreated: Literal["fail", "restart"] = "fail"
    chunk_offsets: int = 50_000


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where a stream begins, by partition."""

    topic_id: str
    at: Mapping[int, int]


def initial_offset(state: TopicState, starting: str | Mapping[str, Any]) -> StartingOffsets:
    """Where a stream begins of whose topic the ledger knows nothing.

    ``starting``: "earliest", "latest", or offsets by partition, either bare or as ``{"topic_id": …, "offsets": …}``;
    partitions without one begin at the earliest. Offsets of another topic id are kept: the first batch then finds
    that the topic was recreated. Raises ConfigError.
    """
    topic_id = state.topic_id
    if starting == "earliest":
        at = dict(state.low)
    elif starting == "latest":
        at = dict(state.high)
    elif isinstance(starting, str):
        raise ConfigError(
            f"starting offsets {starting!r} are not valid", hint='Use "earliest", "latest" or offsets by partition.'
        )
    else:
        topic_id = str(starting.get("topic_id", topic_id))
        try:
            given = _numbers(starting.get("offsets", starting))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"starting offsets of topic {state.topic} are not partition numbers with offsets: {error}",
                hint='Write them as {"0": 1200, "1": 1187}.',
            ) from error
        unknown = sorted(given.keys() - state.low.keys())
        if unknown and topic_id == state.topic_id:
            raise ConfigError(
                f"the starting offsets name partition {unknown[0]}, which topic {state.topic} does not have",
                hint=f"It has the partitions 0 to {len(state.low) - 1}.",
            )
        at = {**state.low, **given} if topic_id == state.topic_id else given
    return StartingOffsets(topic_id, at)


def expect_all(reached: Mapping[int, int], state: TopicState) -> None:
    """Raises DataLoss if the topic lacks a partition that the stream has read."""
    gone = sorted(reached.keys() - state.low.keys())
    if gone:
        raise DataLoss(
            f"topic {state.topic} no longer has partition {gone[0]}",
            hint="Kafka topics never lose partitions: check that this is the cluster that the stream has read.",
        )


def held(state: TopicState, partition: int, start: int, choices: Choices) -> tuple[int, int]:
    """Where reading can continue, and how many offsets are skipped. Raises DataLoss if the user has not allowed it."""
    low, high = state.low[partition], state.high[partition]
    if low <= start <= high:
        return start, 0
    if choices.on_data_loss == "fail":
        raise DataLoss(
            f"topic {state.topic} partition {partition}: offset {start} is the next to be read, "
            f"but the topic holds {low} to {high - 1}",
            hint="Retention removed records before they were read, or records were cut off. "
            f"{REFILL}, or set on_data_loss: continue to read on with what the topic still holds.",
        )
    return (low, low - start) if start < low else (high, 0)


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}


def plan_ranges(
    start: Mapping[int, int], latest: Mapping[int, int], max_offsets: int | None, chunk_offsets: int = 50_000
) -> dict[int, int]:
    """Where each partition's next range ends, so that all ranges together hold at most ``max_offsets`` offsets.

    The limit is shared equally; what a partition does not need is left to the others. An end below the latest offset is
    moved back to a multiple of ``chunk_offsets`` unless the range would then be empty. Every partition of ``latest``
    has an end in the result, equal to its start if it gets nothing. ``start`` must cover ``latest``.
    """
    lag = {partition: max(0, latest[partition] - start[partition]) for partition in latest}
    share = dict.fromkeys(lag, 0)
    left = sum(lag.values()) if max_offsets is None else max(1, max_offsets)
    # Smallest need first: its unused share is left to those after it.
    waiting = sorted(
        (partition for partition in lag if lag[partition]), key=lambda partition: (lag[partition], partition)
    )
    while waiting and left:
        partition = waiting.pop(0)
        # Rounded up, so that a limit below the number of partitions still moves one of them.
        fair = -(-left // (len(waiting) + 1))
        share[partition] = min(lag[partition], fair)
        left -= share[partition]
    return {
        partition: _aligned(start[partition], start[partition] + share[partition], latest[partition], chunk_offsets)
        for partition in lag
    }


def _aligned(start: int, end: int, latest: int, chunk_offsets: int) -> int:
    if end >= latest or chunk_offsets < 1:
        return end
    cut = end // chunk_offsets * chunk_offsets
    return cut if cut > start else end
