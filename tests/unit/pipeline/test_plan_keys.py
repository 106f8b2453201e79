"""A table that cannot keep the rows of a topic apart: the stream stops before it stores one."""

import pytest

from ch_sink.decode.chosen import decoder_for
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import event, records, row

COLUMNS = (Column("id", "Int64"), Column("v", "Nullable(String)"))
RENAMED = (Column("id_x", "Int64"), *COLUMNS)


def planned(table: TargetTable, **policy: object) -> Plan:
    chosen = policy_of(**policy)
    found = records(*[(i, event("c", row(i))) for i in (1, 2)])
    return plan(found, Target.of(table, chosen), decoder_for(table, chosen), State(alone=True), Ports())


@pytest.mark.parametrize("order", [("v",), (), ("intDiv(id, 10)",)])
@pytest.mark.parametrize("family", [Family.REPLACING, Family.COLLAPSING])
def test_rows_of_two_keys_would_become_one(order: tuple[str, ...], family: Family) -> None:
    table = replacing(COLUMNS, order)
    if family is Family.COLLAPSING:
        engine = Engine(family, "CollapsingMergeTree", sign_column="_sign")
        table = TargetTable("d", "t", engine, (*COLUMNS, Column("_sign", "Int8")), order)
    with pytest.raises(TableError, match="lacks the key column id: the engine would merge different rows"):
        planned(table)


def test_a_key_column_that_is_renamed_does_not_get_into_the_sorting_key() -> None:
    with pytest.raises(TableError, match="lacks the key column id_x"):
        planned(replacing(RENAMED, ("id",)), rename=(("id", "id_x"),))


def test_keys_that_the_table_has_no_column_for_are_dead_letters() -> None:
    made = planned(replacing(COLUMNS, ("id",)), rename=(("id", "id_x"),), evolve="add_columns")
    assert ([bad.kind for bad in made.bad], made.inserts, made.barrier) == (["key", "key"], (), None)


def test_a_table_that_has_the_key_stores_the_rows() -> None:
    for made in (
        planned(replacing(COLUMNS, ("v", "id"))),
        planned(replacing(RENAMED[:1] + RENAMED[2:], ("id_x",)), rename=(("id", "id_x"),)),
        planned(TargetTable("d", "t", Engine(Family.MERGE_TREE, "MergeTree"), COLUMNS, ())),
    ):
        assert sum(insert.rows.num_rows for insert in made.inserts) == 2
