"""The history of changes, and tables without a key as a multiset of signed rows."""

from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.merge.append import Changes, merge_multiset
from ch_sink.order import Rules, sequence
from ch_sink.types.column import Column
from tests.support.hand import Event, key_change, mysql, postgres, records_of
from tests.support.memory_fed import MemoryFed
from tests.support.small import Small, rows

KEY = {"id": 1}


def row(v: str, id_: int = 1) -> dict[str, object]:
    return {"id": id_, "p": 0, "v": v}


def test_every_change_is_a_row_with_its_op() -> None:
    step = Small("append").resolve(
        mysql("r", KEY, None, row("a"), 100),
        mysql("u", KEY, row("a"), row("b"), 200),
        mysql("d", KEY, row("b"), None, 300),
        mysql("c", KEY, None, row("c"), 400),
    )
    merged = step.merged()
    assert rows(merged, "rows", "id", "_op", "_sign") == [(1, "r", 1), (1, "u", 1), (1, "d", -1), (1, "c", 1)]
    assert (merged.upserts, merged.deletes) == (3, 1)
    versions = [int.from_bytes(v, "little") for v in merged.steps[0][1].column("_version").to_pylist()]
    assert versions == sorted(set(versions))


def test_the_former_owner_of_a_swapped_key_leaves_below_its_successor() -> None:
    """Else its delete, which comes later, would be the newest change of the key."""
    two = {"id": 2}
    small = Small("append").store(
        postgres("c", KEY, None, row("one"), 100, 91), postgres("c", two, None, row("two", 2), 100, 92)
    )
    first = key_change(postgres("d", KEY, None, None, 500, 410), postgres("c", two, None, row("one", 2), 500, 410))
    second = key_change(postgres("d", two, None, None, 500, 420), postgres("c", KEY, None, row("two"), 500, 420))
    merged = small.resolve(*first, *second).merged()
    table = merged.steps[0][1]
    newest: dict[int, tuple[int, int, bytes]] = {}
    for found in table.to_pylist():
        seen = (int.from_bytes(found["_version"], "little"), found["_sign"], found["v"])
        newest[found["id"]] = max(newest.get(found["id"], (-1, 0, b"")), seen)
    assert {id_: (sign, v) for id_, (_, sign, v) in newest.items()} == {1: (1, b"two"), 2: (1, b"one")}


def test_a_table_without_key_counts_what_comes_and_goes() -> None:
    small = Small("append without key")
    records = records_of(
        [
            mysql("c", None, None, row("a"), 100),
            mysql("c", None, None, row("a"), 110),
            mysql("u", None, row("a"), row("b"), 200),
            mysql("d", None, row("a"), None, 300),
        ]
    )
    decoder = Decoder(small.target.table, small.policy, want_before=small.target.wants_before(()))
    batch = decoder.decode(records)
    order = sequence(
        batch,
        records,
        small.state,
        Rules(small.target.layout, small.policy.versions, "source_position"),
    )
    merged = merge_multiset(Changes.of(batch, records, order, small.target.table, small.target.system.layout))
    assert rows(merged, "rows", "v", "_sign") == [("a", 1), ("a", 1), ("a", -1), ("b", 1), ("a", -1)]
    assert (merged.upserts, merged.deletes) == (3, 2)


def test_a_row_has_the_time_of_its_change_at_the_source_or_else_in_kafka() -> None:
    step = Small("append").resolve(
        mysql("c", KEY, None, row("a"), 100, ts_ms=7),
        mysql("u", KEY, row("a"), row("b"), 200, ts_ms=None),
        mysql("d", KEY, row("b"), None, 300, ts_ms=1 << 62),
    )
    step.records.timestamps[:] = 9
    times = step.merged().steps[0][1].column("_source_time").cast("int64").to_pylist()
    assert times == [7, 9, 10_413_791_999_999]  # the last one that the column can hold


def keyless(op: str, v: str, pos: int, **source: Any) -> Event:
    return mysql(op, None, None if op in "cr" else row(v), None if op == "d" else row(v), pos, **source)


def fed_with(*events: Event, **settings: Any) -> MemoryFed:
    """A table without a key that has these events."""
    columns = [Column("id", "Int64"), Column("p", "Int32"), Column("v", "Nullable(String)")]
    fed = MemoryFed("append", partitions=1, columns=columns, **settings)
    fed.feed(0, *events)
    fed.runner.kill()
    return fed


SNAPSHOT = [keyless("r", "a", 100), keyless("r", "a", 100)]
"""Two equal rows."""


@pytest.mark.parametrize("before", [SNAPSHOT, [*SNAPSHOT, keyless("c", "b", 140)], [keyless("c", "b", 90)]])
def test_rows_of_another_snapshot_are_not_counted_without_a_key(before: list[Event]) -> None:
    """The connector was killed in its snapshot, or takes one while it runs; also in a later life."""
    fed = fed_with(*before)
    with pytest.raises(StreamFailed, match=rf"offset {len(before)} is a row of another snapshot of source 'my'"):
        fed.feed(0, keyless("r", "a", 140))
    assert len(fed.stream.table.rows) == len(before)


def test_the_first_record_of_an_added_partition_stops_the_stream_of_a_table_without_a_key() -> None:
    """It may be a change that is sent again."""
    fed = fed_with(*SNAPSHOT)
    fed.send(1)
    fed.send(0, keyless("c", "b", 120))
    for _ in range(3):
        fed.poll()
    fed.send(1, keyless("c", "b", 120))
    with pytest.raises(StreamFailed, match="carry no key, so changes of a row may be in any of its partitions"):
        [fed.poll() for _ in range(3)]
    assert len(fed.stream.table.rows) == 3


def test_the_rows_of_one_snapshot_are_counted_whatever_comes_between() -> None:
    fed = fed_with(SNAPSHOT[0])
    fed.feed(0, SNAPSHOT[1], keyless("r", "a", 900, name="another shard"), keyless("d", "a", 200))
    assert [(r["v"], r["_sign"]) for r in fed.stream.table.rows] == [(b"a", 1)] * 3 + [(b"a", -1)]
