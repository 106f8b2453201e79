"""Which waiting changes are released together is decided once: a kill in between stores none of them twice."""

from collections import Counter

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres, records_of
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic

COLUMNS = (Column("id", "Int64"), Column("big", "Nullable(String)"))
ENGINES = ("replacing", "sign", "collapsing", "versioned", "append")


def moved(old: int, new: int, at: int) -> list[Event]:
    create = postgres("c", {"id": new}, None, {"id": new, "big": PLACEHOLDER}, at, at - 10)
    return key_change(postgres("d", {"id": old}, None, None, at, at - 10), create)


def stream(engine: str) -> MemoryStream:
    """Create halves on partition 0, and what they wait for on 1."""
    first, second = moved(1, 2, 200), moved(3, 4, 300)
    rows = [postgres("c", {"id": i}, None, {"id": i, "big": f"value {i}"}, 100 + i, 90) for i in (1, 3)]
    records = {0: records_of([first[2], second[2]]), 1: records_of([*rows, first[0], second[0]])}
    return MemoryStream(document_table(COLUMNS, engine, "id"), ("id",), MemoryTopic("t", records), policy_of())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("point", ["after group", "after insert", "before release", "after release"])
def test_a_kill_while_changes_are_released_stores_none_twice(engine: str, point: str) -> None:
    """Another task, which outlives the killed driver, brings the second hand-over before the next life looks."""
    whole, memory = stream(engine), stream(engine)
    LocalRunner(whole.settings, whole.ports()).run([LocalBatch({0: (0, 2), 1: (0, 4)})])
    # The delete half is one insert, the released create half the next.
    kill = Kill(point, 2 if point == "after insert" else 1)

    def arrives() -> None:
        assert len(memory.handover.stored) == 1
        memory.handover.stored |= whole.handover.stored

    runner = LocalRunner(memory.settings, memory.ports(), after_kill=arrives)
    runner.run([LocalBatch({0: (0, 2), 1: (0, 2)})])
    runner.run([LocalBatch({1: (2, 3)}, kills=(kill,))])
    assert runner.lives == 2
    runner.run([LocalBatch({1: (3, 4)})])
    runner.stop()
    assert len(memory.pending) == 0
    rows = Counter((r["id"], str(r["_version"]), r.get("_sign"), r.get("_is_deleted")) for r in memory.table.rows)
    assert {row: n for row, n in rows.items() if n > 1} == {}
    assert {r["id"]: r["big"] for r in memory.table.current()} == {2: b"value 1", 4: b"value 3"}
