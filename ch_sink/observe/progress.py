"""Figures of a running stream, and the one line that shows them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ch_sink.model.address import counted, grouped

__all__ = ["DEDUPLICATED", "SKIPPED", "Figures", "StreamSummary", "progress_line"]

SKIPPED = ("tombstone", "heartbeat", "transaction", "message", "schema_change", "watermark", "notification")
"""Counts of records that change no row."""
DEDUPLICATED = ("redelivered", "superseded", "repeated")
"""Counts of changes that were applied before, or are older than what is stored."""


@dataclass(slots=True)
class Figures:
    """Sums over batches. ``counts`` has the kinds of records: events, upserts, deletes, tombstone, redelivered, …"""

    batches: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    waiting: int = 0
    """Changes that wait for the other half of a key change."""
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    source_time: int = 0
    """Source time of the newest event in milliseconds since 1970, 0 if there is none."""

    def add(
        self,
        *,
        records: int = 0,
        rows: int = 0,
        dead_letters: int = 0,
        waiting: int = 0,
        counts: Mapping[str, int] | None = None,
        source_time: int = 0,
    ) -> None:
        """Add the result of one range."""
        self.records += records
        self.rows += rows
        self.dead_letters += dead_letters
        self.waiting += waiting
        self.counts.update(counts or {})
        self.source_time = max(self.source_time, source_time)

    @property
    def deletes(self) -> int:
        return self.counts["deletes"]

    @property
    def skipped(self) -> int:
        """Records that change no row."""
        return sum(self.counts[kind] for kind in SKIPPED)

    @property
    def deduplicated(self) -> int:
        """Changes that were applied before, or are older than what is stored."""
        return sum(self.counts[kind] for kind in DEDUPLICATED)

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "records": self.records,
            "rows": self.rows,
            "deletes": self.deletes,
            "dead_letters": self.dead_letters,
            "waiting": self.waiting,
            "deduplicated": self.deduplicated,
            "aside": self.skipped,
            "counts": {name: n for name, n in sorted(self.counts.items()) if n},
            "seconds": round(self.seconds, 3),
            "source_time_ms": self.source_time or None,
        }


@dataclass(slots=True)
class StreamSummary:
    """What one run of a stream did."""

    stream: str
    topic: str
    table: str
    figures: Figures = field(default_factory=Figures)
    lag: int | None = None
    """Offsets still to read, None if unknown."""
    batch_seconds: float = 0.0
    """How long the last batch took."""
    offsets: dict[int, int] = field(default_factory=dict)
    """The next offset of each partition that this run has read."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "topic": self.topic,
            "table": self.table,
            "lag": self.lag,
            **self.figures.as_json(),
        }


def progress_line(summary: StreamSummary) -> str:
    """``orders  batch 12  1 200 000 records  310 000/s  1 100 000 rows  2 000 deletes  lag 40 000``."""
    seen = summary.figures
    words = [
        f"batch {seen.batches}",
        counted(seen.records, "record"),
        f"{grouped(round(seen.rate))}/s",
        counted(seen.rows, "row"),
    ]
    for number, one, many in (
        (seen.deletes, "delete", "deletes"),
        (seen.deduplicated, "deduplicated", "deduplicated"),
        (seen.skipped, "skipped", "skipped"),
        (seen.waiting, "waiting", "waiting"),
        (seen.dead_letters, "dead letter", "dead letters"),
    ):
        if number:
            words.append(counted(number, one, many))
    if summary.lag is not None:
        words.append(f"lag {grouped(summary.lag)}")
    return "  ".join([summary.table, *words])
