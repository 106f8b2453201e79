"""What a task's work is named after, and what became of a chunk."""

from dataclasses import dataclass, field

from ch_sink.model.counts import Counts
from ch_sink.order import BackwardStep, State
from ch_sink.pipeline.barrier import Barrier

__all__ = ["Applied", "StreamName"]


@dataclass(frozen=True, slots=True)
class StreamName:
    """What deduplication tokens and stored records are named after."""

    stream: str
    topic: str
    topic_id: str
    partition: int
    attempt: int = 0
    """How many earlier batches overlap this range."""

    def token(self, first: int, end: int, label: str, *, execution: str = "") -> str:
        """Deduplication token of one insert: the same token always means the same rows.

        ``execution`` belongs to the tokens of reconciling inserts, whose content differs each time.
        """
        parts = [self.stream, self.topic_id, str(self.partition), f"{first}-{end - 1}", label]
        if execution:
            parts.append(f"execution-{execution}")
        return "/".join(parts)


@dataclass(slots=True)
class Applied:
    """The result of a chunk, or of a group of waiting changes."""

    state: State
    first: int = 0
    end: int = 0
    """The next offset: the end of the chunk, or the barrier."""
    counts: Counts = field(default_factory=Counts)
    """Records behind a barrier are not counted: they are read again."""
    steps: list[BackwardStep] = field(default_factory=list)
    barrier: Barrier | None = None

    def add(self, earlier: "Applied") -> "Applied":
        """Add the figures of what was stored before this; returns itself."""
        self.counts.add(earlier.counts)
        return self
