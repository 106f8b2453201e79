"""ClickHouse behind the stream: a table that lacks rows stops it, a ledger restored with its table does not."""

import copy
import logging
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.model.counts import Counts
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.target import Target
from ch_sink.ports import FinishedRange, RowsEdited, TableRefilled, TruncateFloor
from ch_sink.stream.rollback import ahead, lacking, newest_stored
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.hand import PLACEHOLDER, key_change, postgres, records_of
from tests.support.local_runner import LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic

COLUMNS = (Column("id", "Int64"), Column("big", "Nullable(String)"))
REPLACING = ("replacing", "sign")


def records(*, keyed: bool = True) -> Any:
    """Rows come on both partitions, change, go, and one moves to the key of another partition.

    Without keys: equal rows come on one partition.
    """
    if not keyed:
        return {0: records_of([postgres("c", None, None, {"id": 1, "big": "v"}, 100, 90 + i) for i in range(12)])}
    first = [postgres("c", {"id": i}, None, {"id": i, "big": f"value {i}"}, 100 + i, 90) for i in range(0, 12, 2)]
    second = [postgres("c", {"id": i}, None, {"id": i, "big": f"value {i}"}, 100 + i, 90) for i in range(1, 12, 2)]
    create = postgres("c", {"id": 20}, None, {"id": 20, "big": PLACEHOLDER}, 200, 190)
    moved = key_change(postgres("d", {"id": 1}, None, None, 200, 190), create)
    first += [moved[2], postgres("d", {"id": 2}, None, None, 210, 205)]
    second += [moved[0], postgres("u", {"id": 3}, None, {"id": 3, "big": "newer"}, 220, 215)]
    first += [postgres("u", {"id": 20}, None, {"id": 20, "big": PLACEHOLDER}, 230, 225)]
    return {0: records_of(first), 1: records_of(second)}


TRUTH = {
    **{i: f"value {i}".encode() for i in range(12) if i not in (1, 2)},
    3: b"newer",
    20: b"value 1",
}


class Stream:
    def __init__(self, engine: str = "replacing", *, version: str = "UInt128", keyed: bool = True) -> None:
        table, topic = document_table(COLUMNS, engine, "id", version), MemoryTopic("t", records(keyed=keyed))
        self.memory = MemoryStream(table, ("id",) if keyed else (), topic, policy_of(), chunk_offsets=3)

    def runner(self) -> LocalRunner:
        """The next job."""
        return LocalRunner(self.memory.settings, self.memory.ports())

    def run(self, limit: int | None = 5) -> None:
        runner = self.runner()
        runner.catch_up(limit)
        runner.stop()

    def current(self) -> dict[int, bytes]:
        return {row["id"]: row["big"] for row in self.memory.table.current()}

    def lose(self, keep: int) -> None:
        """The table has its first rows only; the server still knows the tokens of the others."""
        table = self.memory.table
        kept = table.rows[:keep]
        table.rows.clear()
        table._by_key.clear()
        table.put(kept)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("version", ["UInt128", "UInt64"])
@pytest.mark.parametrize("engine", [*REPLACING, "append"])
@pytest.mark.parametrize("keep", [0, 4, 9])
def test_a_table_that_lacks_rows_stops_the_stream_and_resync_is_named(engine: str, keep: int, version: str) -> None:
    stream = Stream(engine, version=version)
    stream.run()
    stream.run()
    stream.lose(keep)
    rows = list(stream.memory.table.rows)
    with pytest.raises(StreamFailed, match="lacks rows that the stream has stored") as error:
        stream.run()
    whence = " --against topic" if engine == "append" else ""
    assert f"ch_sink resync CONFIG{whence} --apply" in str(error.value.hint)
    assert stream.memory.table.rows == rows


def test_a_purge_by_age_hides_no_loss() -> None:
    """It leaves the highest version in the table."""
    stream = Stream()
    stream.run()
    stream.run()
    below = str(stream.memory.table.highest_version() - 1)
    stream.memory.ledger.note(*(RowsEdited("id", p, 9, "removed", top=below) for p in (0, 1)))
    stream.lose(4)
    with pytest.raises(StreamFailed, match="lacks rows that the stream has stored"):
        stream.run()


def test_what_was_erased_before_a_table_was_filled_hides_no_loss() -> None:
    ledger, target = MemoryLedger("s"), Target.of(document_table(COLUMNS, "replacing", "id", "UInt128"), policy_of())
    ledger.claim("run")
    ledger.record(RowsEdited("id", 0, 4, "removed", top=str(9 << 32), left=str(3 << 32)))
    assert not lacking(ledger, target, "id", 1, lambda: 3 << 32)
    ledger.record(TableRefilled("id", 0, 4, top=str(7 << 32)))
    assert lacking(ledger, target, "id", 1, lambda: 3 << 32)
    assert not lacking(ledger, target, "id", 1, lambda: 7 << 32)


def test_merges_may_remove_the_newest_delete_row() -> None:
    stream = Stream()
    cleaned = (("allow_experimental_replacing_merge_with_cleanup", "1"),)
    stream.memory.detected = replace(stream.memory.detected, settings=cleaned)
    stream.run()
    stream.run()
    stream.lose(9)
    stream.run()
    assert len(stream.memory.table.rows) == 9


@pytest.mark.parametrize(
    ("engine", "version"),
    [*((engine, "UInt128") for engine in (*REPLACING, "append", "collapsing", "versioned")), ("replacing", "UInt64")],
)
def test_a_backup_of_table_and_ledger_goes_on_where_it_was(
    engine: str, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(engine, version=version)
    runner = stream.runner()
    state = runner.ports.topics.state("t")
    runner.coordinator.run_batch(runner.coordinator.plan(state, 9), runner._execute)
    runner.stop()
    backup = copy.deepcopy((stream.memory.table, stream.memory.ledger._book, stream.memory.pending.stored))
    stream.run()
    stream.memory.table, stream.memory.ledger._book, stream.memory.pending.stored = backup
    with caplog.at_level(logging.WARNING, "ch_sink"):
        stream.run()
    assert "its consumer group has committed offset" in caplog.text
    assert stream.current() == TRUTH


def beside_an_older_ledger(first: int, *, keyed: bool = True) -> Stream:
    """A history as after a fail-over to a server that has the table, and a ledger of its first offsets only."""
    stream = Stream("append", keyed=keyed)
    runner = stream.runner()
    if first:
        runner.coordinator.run_batch(runner.coordinator.plan(runner.ports.topics.state("t"), first), runner._execute)
        runner.stop()
    older = copy.deepcopy(stream.memory.ledger._book)
    stream.run()
    stream.memory.ledger._book = older
    stream.memory.table.tokens.clear()  # those of another server
    return stream


@pytest.mark.sampled(7)
@pytest.mark.parametrize("read", [3, None])
@pytest.mark.parametrize("first", [2, 5, 9])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_history_is_stored_once_beside_an_older_ledger(keyed: bool, first: int, read: int | None) -> None:
    stream = beside_an_older_ledger(first, keyed=keyed)
    rows = list(stream.memory.table.rows)
    group = dict(stream.memory.group.committed)
    if read is not None:  # a life that ends before it has read what the table has
        runner = stream.runner()
        runner.coordinator.run_batch(runner.coordinator.plan(runner.ports.topics.state("t"), read), runner._execute)
        runner.kill()
        assert stream.memory.group.committed == group
    stream.run(None)
    assert stream.memory.table.rows == rows
    assert stream.memory.group.committed == group


def stops_before_a_history_is_stored_twice(stream: Stream) -> None:
    rows = list(stream.memory.table.rows)
    with pytest.raises(StreamFailed, match="its consumer group has committed offset") as error:
        stream.run()
    assert "twice" in str(error.value.hint)
    assert stream.memory.table.rows == rows


def test_a_history_whose_ledger_is_lost_stops_the_stream() -> None:
    stops_before_a_history_is_stored_twice(beside_an_older_ledger(0))


def test_a_history_of_a_later_epoch_than_its_ledger_stops_the_stream() -> None:
    """What is read again would have other versions than what is stored."""
    stream = beside_an_older_ledger(9)
    (version,) = {name for name in stream.memory.table.rows[0] if name == "_version"}
    last = stream.memory.table.rows[-1]
    risen = 1 << 112 | int.from_bytes(last[version], "little")
    stream.memory.table.put([{**last, "id": 99, version: risen.to_bytes(16, "little")}])
    stops_before_a_history_is_stored_twice(stream)


def test_a_history_of_which_neither_ledger_nor_group_knows_is_not_stored_twice() -> None:
    """As under another stream name, or after the group's offsets have expired."""
    stream = Stream("append")
    stream.run()
    rows = len(stream.memory.table.rows)
    other = Stream("append")
    other.memory.table = stream.memory.table
    with pytest.raises(StreamFailed, match="has rows, and the ledger has no entry of stream") as error:
        other.run()
    assert "new table" in str(error.value.hint)
    assert len(stream.memory.table.rows) == rows


def result(batch: int, partition: int, start: int, end: int, top: int = 0) -> FinishedRange:
    return FinishedRange("t", "id", partition, start, end, Counts(top=top), batch=batch)


def test_rows_that_a_truncate_removed_do_not_count() -> None:
    stored = [result(1, 0, 0, 10, 7 << 32), result(2, 0, 10, 20, 9 << 32)]
    assert newest_stored(stored, [TruncateFloor(0, 0, 0)]) == 9 << 32
    assert newest_stored(stored, [TruncateFloor(0, 8, 0)]) == 9 << 32
    assert newest_stored(stored, [TruncateFloor(0, 9, 0)]) == 0
    assert newest_stored(stored, [TruncateFloor(0, 9, 0, version=str(9 << 32))]) == 9 << 32
    assert newest_stored(stored, [TruncateFloor(0, 9, 0, version=str((9 << 32) + 1))]) == 0


def test_a_group_is_ahead_where_the_ledger_ends_before_it() -> None:
    assert ahead({0: 10, 1: 4}, {0: 10, 1: 5}) == ""
    assert "offset 10 of partition 0, and its ledger ends at 9" in ahead({0: 10, 1: 4}, {0: 9, 1: 5})
    assert "for 2 partitions" in ahead({0: 10, 1: 4}, {})
