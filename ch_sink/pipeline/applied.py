"""What a task's work is named after, and what became of a chunk."""

from collections import Counter
from dataclasses import dataclass, field

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
    rows: int = 0
    records: int = 0
    """Records at the offsets that are done; those behind a barrier are read again."""
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[BackwardStep] = field(default_factory=list)
    barrier: Barrier | None = None
    dead_letters: int = 0
    last_source_ts: int = 0
    top: int = 0
    """Highest version of the rows that were stored, 0 for none."""

    def add(self, earlier: "Applied") -> "Applied":
        """Add the figures of what was stored before this; returns itself."""
        self.rows += earlier.rows
        self.counts.update(earlier.counts)
        self.dead_letters += earlier.dead_letters
        return self
