"""Feeds document events through the pipeline into a table in memory, with cuts, kills and second attempts."""

import json
import random
from collections.abc import Sequence
from typing import Any

from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import DeadLetter
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.column import Column
from tests.support.event import chunk_of
from tests.support.hand import Event
from tests.support.harness import ENGINES
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic


def document_table(
    columns: Sequence[Column], engine: str = "replacing", key: str = "_id", version: str = "UInt128"
) -> TargetTable:
    """A table of these source columns, ordered by the key. ``version``: type of its version column."""
    made = ENGINES[engine]
    system = [Column("_version", version)]
    if made.sign_column:
        system.append(Column("_sign", "Int8"))
    if made.is_deleted_column:
        system.append(Column("_is_deleted", "UInt8"))
    if made.family is Family.MERGE_TREE:
        system += [Column("_op", "String"), Column("_sign", "Int8")]
    places = frozenset((key,))
    return TargetTable("d", "t", made, (*columns, *system), (key,), place_columns=places, dedup_window=1000)


class DocumentRun:
    """One partition of a topic into one table in memory."""

    def __init__(self, table: TargetTable, policy: Policy, events: Sequence[Event], key: str = "_id") -> None:
        self.end = len(events)
        self.stream = MemoryStream(table, (key,), MemoryTopic("t", {0: _records(events)}), policy)
        self.table = self.stream.table
        self.runner = LocalRunner(self.stream.settings, self.stream.ports())

    def apply(self, start: int, end: int) -> None:
        """These events, as one batch of one chunk."""
        self.runner.run([LocalBatch({0: (start, end)})])

    def run(self, rng: random.Random | None = None, longest: int = 10**9, kills: float = 0.0) -> "DocumentRun":
        """Everything, in batches of some chunks of up to ``longest`` events; some attempts at a batch die."""
        rng, start = rng or random.Random(0), 0
        while start < self.end:
            cuts = [start]
            while cuts[-1] < self.end and len(cuts) <= rng.randint(1, 4):
                cuts.append(min(self.end, cuts[-1] + rng.randint(1, longest)))
            struck = [_kill(rng, len(cuts) - 1) for _ in range(3) if rng.random() < kills]
            self.runner.run([LocalBatch({0: (start, cuts[-1])}, {0: cuts[1:]}, [0] * (len(cuts) - 1), struck)])
            start = cuts[-1]
        return self

    @property
    def letters(self) -> list[DeadLetter]:
        """By offset."""
        return [stored.letter for stored in self.stream.dead_letters.list()]

    def rows(self) -> list[dict[str, Any]]:
        """Current rows, texts as texts."""
        return [{name: _shown(value) for name, value in row.items()} for row in self.table.current()]


def _records(events: Sequence[Event]) -> Records:
    keys = [None if e.key is None else json.dumps(e.key).encode() for e in events]
    values = [None if e.value is None else json.dumps(e.value, ensure_ascii=False).encode() for e in events]
    return chunk_of(keys, values)


def _kill(rng: random.Random, steps: int) -> Kill:
    point = rng.choice(("before insert", "after insert", "before progress", "after step"))
    return Kill(point, rng.randint(1, 2), rng.randrange(steps))


def _shown(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
