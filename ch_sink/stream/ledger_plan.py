"""What a stream's next batch reads, from its ledger and its topic's watermarks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ch_sink.model.topic import TopicState
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.offset_ranges import Choices, OffsetRange, initial_offset, next_offset

__all__ = ["LedgerPlan"]


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """Plans the batches of one stream."""

    coordinator: Coordinator
    start: str | Mapping[str, Any] = "earliest"
    """Where a stream begins that has read nothing."""
    choices: Choices = field(default_factory=Choices)

    def __call__(self, state: TopicState, ceiling: Mapping[int, int] | None) -> list[OffsetRange]:
        """All that there is to read, nothing beyond the ceiling. Raises DataLoss, ConfigError, LedgerError."""
        last = initial_offset(state, self.coordinator.progress() or self.start)
        planned = next_offset(last, state, None, self.choices, ceiling)
        return [] if planned is last else planned.ranges()
