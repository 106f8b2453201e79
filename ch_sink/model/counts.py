"""Counts of applied, skipped and failed records, of a chunk, a range, a batch or a whole run; numbers with nouns."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DEDUPLICATED = ("redelivered", "superseded", "repeated")
"""Kinds of changes that were applied before, or are older than what is stored."""


@dataclass(slots=True)
class Counts:
    """Sums; of the two maxima, 0 means none."""

    records: int = 0
    rows: int = 0
    """Rows inserted into the table."""
    dead_letters: int = 0
    source_time: int = 0
    """Source time of the newest event in milliseconds since 1970."""
    top: int = 0
    """Highest version of the rows."""
    kinds: Counter[str] = field(default_factory=Counter)
    """By kind of record: events, upserts, deletes, tombstone, redelivered, …; values out of range; and milliseconds by
    stage (``…_ms``).
    """

    def add(self, other: "Counts") -> None:
        """Add the figures of something else."""
        self.records += other.records
        self.rows += other.rows
        self.dead_letters += other.dead_letters
        self.source_time = max(self.source_time, other.source_time)
        self.top = max(self.top, other.top)
        self.kinds.update(other.kinds)

    @property
    def deletes(self) -> int:
        return self.kinds["deletes"]

    @property
    def skipped(self) -> dict[str, int]:
        """Records that change no row, by kind."""
        from ch_sink.model.change import Skipped  # loads pyarrow, which help and completion do without

        return {str(kind): self.kinds[kind] for kind in Skipped if self.kinds[kind]}

    @property
    def deduplicated(self) -> int:
        """Changes that were applied before, or are older than what is stored."""
        return sum(self.kinds[kind] for kind in DEDUPLICATED)

    @property
    def out_of_range(self) -> int:
        """Values that were stored as another one, or as null, because their column cannot hold them."""
        return self.kinds["out_of_range"]

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, summed over tasks."""
        return {name.removesuffix("_ms"): n / 1000 for name, n in list(self.kinds.items()) if name.endswith("_ms")}

    def as_json(self) -> dict[str, Any]:
        """The figures that every command shows."""
        return {
            "records": self.records,
            "rows": self.rows,
            "deletes": self.deletes,
            "dead_letters": self.dead_letters,
            "deduplicated": self.deduplicated,
            "out_of_range": self.out_of_range,
        }


def total(each: Iterable[Counts]) -> Counts:
    """Sums as a ledger keeps them: without the number of records and the highest version."""
    found = Counts()
    for counts in each:
        found.add(counts)
    found.records = found.top = 0
    return found


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``12 000 rows``; ``plural`` where an s is not enough."""
    return f"{grouped(number)} {noun if number == 1 else plural or noun + 's'}"


def capitalized(text: str) -> str:
    """The text with a capital at its beginning, as a sentence has it; the rest stays as it is."""
    return text[0].upper() + text[1:]


def grouped(number: int) -> str:
    """The number with grouped thousands: ``12 000``."""
    return f"{number:,}".replace(",", " ")
