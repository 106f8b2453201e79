"""What is left of a chunk that an earlier attempt with other settings may have stored in part."""

from dataclasses import replace

import pyarrow as pa
import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import ColumnPolicy, TopicProfile, policy_of
from ch_sink.order import State
from ch_sink.pipeline.merging import Left, Outcome, left_to_store
from ch_sink.pipeline.plans import Changed, Known, Waiting
from ch_sink.pipeline.target import Target
from ch_sink.ports import Insert, StoredRows
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column

OWN = (Column("_op", "String"), Column("_sign", "Int8"), Column("_version", "UInt128"))


def target(family: Family, *, versioned: bool = True) -> Target:
    own = OWN if versioned else OWN[:2]
    table = TargetTable("d", "t", Engine(family, family.value), (Column("id", "Int64"), *own))
    return Target.of(table, policy_of())


def merged(*ids: int, key: tuple[str, ...] = ("id",), versioned: bool = True) -> Outcome:
    rows = {"id": pa.array(ids), "_sign": pa.array([1] * len(ids), pa.int8())}
    if versioned:
        rows["_version"] = pa.array([(100 + i).to_bytes(16, "little") for i in ids], pa.binary(16))
    return Outcome(State(profile=replace(TopicProfile(), key_columns=key)), [Insert(pa.table(rows), "rows/*")])


class Stored:
    """Holds the rows of these ids."""

    def __init__(self, *ids: int) -> None:
        self.rows = merged(*ids).inserts[0].rows
        self.asked: list[str] = []

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        self.asked = keys.column_names
        return StoredRows(self.rows)


def left(made: Left) -> list[tuple[list[int], bool]]:
    return [(i.rows.column("id").to_pylist(), i.partial) for i in made.inserts]


def without_stored(made: Outcome, of: Target, lookup: Stored, changed: Changed) -> Left:
    """Of a chunk that was begun under other settings."""
    return left_to_store(made, made.counts, of, lookup, Known(changed=changed), made.state)


def without_repeated(made: Outcome, of: Target, lookup: Stored, released: tuple[int, ...] = ()) -> Left:
    """Of a chunk that is applied again."""
    return left_to_store(made, made.counts, of, lookup, Known(released=released, repeats=True), made.state)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [((), ([1, 2, 3], False)), ((2,), ([1, 3], True)), ((1, 2, 3), ([], True)), ((9,), ([1, 2, 3], False))],
)
def test_changes_that_are_stored_are_left_out(stored: tuple[int, ...], wanted: tuple[list[int], bool]) -> None:
    lookup = Stored(*stored)
    made = without_stored(merged(1, 2, 3), target(Family.MERGE_TREE), lookup, "other")
    assert left(made) == [wanted]
    assert lookup.asked == ["_version", "_sign", "id"]


@pytest.mark.parametrize("key", [("nr",), ()])
def test_a_renamed_key_and_the_topic_tell_changes_apart(key: tuple[str, ...]) -> None:
    """Another topic of the table has a change of the same version and key."""
    chosen = ColumnPolicy(rename=(("nr", "id"),), add=(("_from", "'a'"),), source=("_from",))
    table = target(Family.MERGE_TREE).table
    table = replace(table, columns=(*table.columns, Column("_from", "String")))
    appends = Target.of(table, replace(policy_of(), columns=chosen))
    made, lookup = merged(1, 2, key=key), Stored(1, 2)
    made = replace(made, inserts=[Insert(made.inserts[0].rows.append_column("_from", pa.array(["a", "a"])), "rows/*")])
    lookup.rows = lookup.rows.append_column("_from", pa.array(["a", "b"]))
    assert left(without_stored(made, appends, lookup, "other")) == [([2], True)]


def test_without_versions_a_changed_setting_is_refused_and_an_older_version_s_tokens_are_kept() -> None:
    appends, made = target(Family.MERGE_TREE, versioned=False), merged(1, versioned=False)
    with pytest.raises(StreamFailed, match="cannot be found again") as caught:
        without_stored(made, appends, Stored(), "other")
    assert "version that began the batch" in (caught.value.hint or "")
    assert without_stored(made, appends, Stored(), "unknown").inserts is made.inserts


@pytest.mark.parametrize(
    ("superseded", "family", "wanted"),
    [
        (1, Family.REPLACING, ([1, 3], True)),
        (0, Family.REPLACING, ([1, 2, 3], False)),  # nothing was looked up: its tokens are those of the first attempt
        (0, Family.MERGE_TREE, ([1, 3], True)),  # a restored table has no tokens
        (1, Family.COLLAPSING, ([1, 2, 3], False)),
    ],
)
def test_rows_that_are_stored_as_they_are_are_left_out_of_a_repeated_chunk(
    superseded: int, family: Family, wanted: tuple[list[int], bool]
) -> None:
    made = merged(1, 2, 3)
    made.counts["superseded"] = superseded
    engine = Engine(family, family.value, "_version" if family is Family.REPLACING else None)
    table = replace(target(family).table, engine=engine)
    assert left(without_repeated(made, Target.of(table, policy_of()), Stored(2, 9))) == [wanted]


def test_a_row_that_is_stored_with_other_values_is_stored_again() -> None:
    made = merged(1, 2)
    made.counts["superseded"] = 1
    lookup = Stored(1, 2)
    lookup.rows = lookup.rows.set_column(1, "_sign", pa.array([1, -1], pa.int8()))
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version")
    table = replace(target(Family.REPLACING).table, engine=engine)
    assert left(without_repeated(made, Target.of(table, policy_of()), lookup)) == [([2], True)]


@pytest.mark.parametrize(("sign", "wanted"), [(-1, ([], True)), (1, ([1], False))])
def test_a_delete_is_stored_though_the_first_attempt_knew_other_values_of_its_row(
    sign: int, wanted: tuple[list[int], bool]
) -> None:
    made = merged(1)
    made.counts["superseded"] = 1
    rows = made.inserts[0].rows.set_column(1, "_sign", pa.array([sign], pa.int8()))
    lookup = Stored(1)
    lookup.rows = rows.append_column("name", pa.array(["a"]))
    made = replace(made, inserts=[Insert(rows.append_column("name", pa.array([None], pa.string())), "rows/*")])
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", sign_column="_sign")
    columns = (*target(Family.REPLACING).table.columns, Column("name", "Nullable(String)"))
    table = replace(target(Family.REPLACING).table, engine=engine, columns=columns)
    assert left(without_repeated(made, Target.of(table, policy_of()), lookup)) == [wanted]


def test_a_delete_in_another_place_is_stored_too() -> None:
    made = merged(1)
    made.counts["superseded"] = 1
    rows = made.inserts[0].rows.set_column(1, "_sign", pa.array([-1], pa.int8()))
    lookup = Stored(1)
    lookup.rows = rows.append_column("day", pa.array([1]))
    made = replace(made, inserts=[Insert(rows.append_column("day", pa.array([2])), "rows/*")])
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", sign_column="_sign")
    columns = (*target(Family.REPLACING).table.columns, Column("day", "Int64"))
    table = replace(
        target(Family.REPLACING).table, engine=engine, columns=columns, place_columns=frozenset({"id", "day"})
    )
    assert left(without_repeated(made, Target.of(table, policy_of()), lookup)) == [([1], False)]


@pytest.mark.parametrize("count", ["superseded", "truncated", "looked_up", "handed_over", "filled", ""])
def test_a_repeated_chunk_is_compared_with_the_table_if_its_plan_needed_more_than_its_records(count: str) -> None:
    made, lookup = merged(1), Stored(1)
    made.counts[count] = 1
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version")
    table = Target.of(replace(target(Family.REPLACING).table, engine=engine), policy_of())
    assert left(without_repeated(made, table, lookup)) == [([], True) if count else ([1], False)]
    if not count:
        assert left(without_repeated(made, table, lookup, released=(1,))) == [([], True)]
        made = replace(made, pending=[Waiting(0, 0, 0)])
        assert left(without_repeated(made, table, lookup)) == [([], True)]
