"""The row type that a topic's records show of a table that exists."""

from dataclasses import replace

from ch_sink.discovery.look import Sampled, examine, schema_for
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.types.column import Column
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.decoding import replacing
from tests.support.event import event, records


def test_a_field_under_its_adjusted_name_is_the_column_of_the_original_one() -> None:
    """Also if records from before Avro, which still have that, are in the topic."""
    number, text = SourceType("int64", optional=False), SourceType("string")
    columns = (Column("order-id", "Int64"), Column("Unit Price", "Nullable(String)"))
    table = replacing(columns, ("order-id",))
    adjusted = (Field("order_id", number), Field("Unit_Price", text))
    original = (Field("order-id", number), Field("Unit Price", text))
    both = tuple(replace(f, type=replace(f.type, optional=True)) for f in (*original, *adjusted))
    for fields, key in ((adjusted, adjusted[:1]), (both, adjusted[:1])):
        seen = Sampled(RowSchema(fields, key), 4, avro=True)
        found = schema_for(seen, table)
        assert found is not None
        assert ([f.name for f in found.fields], [f.name for f in found.key]) == (
            ["order-id", "Unit Price"],
            ["order-id"],
        )
        assert [f.type.optional for f in found.fields] == [False, True]
        assert schema_for(replace(seen, avro=False), table) == seen.schema


def test_a_choice_that_no_event_has_is_named_with_the_column_that_may_be_meant() -> None:
    """The mask of another name would store the value as it is. A topic need not have every column of a file of many."""
    row = {"id": 1, "EMAIL": "a@b", "Unit_Price": 5, "City": "x", "phone": "1"}
    chosen = ColumnPolicy(
        exclude=("Unit Price", "phones"), rename=(("city", "town"),), mask=(("email", "sha256"), ("phone", "redact"))
    )
    seen = examine([records((1, event(after=row)))], "t", replace(policy_of(), columns=chosen))
    assert [said.partition(", ")[0] for said in seen.misnamed] == [
        "columns.exclude names Unit Price",
        "columns.rename names city",
        "columns.mask names email",
    ]
    assert seen.misnamed[2].endswith("they have EMAIL")
