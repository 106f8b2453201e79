"""Columns of existing tables: what each type takes, stored and read back; what it does not take is refused by name."""

from typing import Any

import pyarrow as pa
import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from ch_sink.types import OutOfRange, converter
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import parse_connect_schema
from tests.support.decoding import replacing
from tests.support.engine import Engine
from tests.support.one_column import records, stored
from tests.unit.types.type_cases import Case
from tests.unit.types.type_cases.case import DATA, field
from tests.unit.types.type_cases.edges import EDGES
from tests.unit.types.type_cases.matrix import MATRIX, TARGETS, Row


@pytest.fixture(scope="module")
def engine(engine: Engine) -> Engine:
    """With the settings that some of the types need."""
    engine.run("SET flatten_nested = 0, allow_suspicious_low_cardinality_types = 1")
    return engine


@pytest.fixture(scope="module")
def shown(engine: Engine) -> dict[tuple[str, str], Any]:
    """What the engine shows of each pair that goes together, or the error that came instead."""
    found: dict[tuple[str, str], Any] = {}
    pairs = [paired(row, target) for row in MATRIX for target in row.accepts]
    for cases in (*(pairs[start : start + 60] for start in range(0, len(pairs), 60)), EDGES):
        columns: list[tuple[tuple[str, str], str, pa.Array]] = []
        for case in cases:
            try:
                columns.append(((case.what, case.column), case.column, decoded(case)))
            except (TableError, AssertionError) as error:
                found[case.what, case.column] = error
        cells = stored(engine, [(kind, array) for _, kind, array in columns])
        found.update({place: cell for (place, _, _), cell in zip(columns, cells, strict=True)})
    return found


def paired(row: Row, target: str) -> Case:
    accepted = row.accepts[target]
    pair = accepted if isinstance(accepted, tuple) else (row.literal, accepted)
    return Case(row.what, {**row.schema, "optional": False}, target, (pair,))


def decoded(case: Case) -> pa.Array:
    table = replacing((Column("id", "Int64"), Column("x", case.column)), ("id",))
    batch = Decoder(table, policy_of()).decode(records(case, schema=True))
    assert not batch.bad, batch.bad[0].reason
    return batch.after["x"].combine_chunks()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.what)
def test_a_value_goes_into_every_column_that_takes_it(shown: dict[tuple[str, str], Any], row: Row) -> None:
    found = {target: shown[row.what, target] for target in row.accepts}
    assert found == {target: [str(paired(row, target).values[0][1]).encode()] for target in row.accepts}


@pytest.mark.parametrize("case", EDGES, ids=lambda case: f"{case.what} into {case.column}")
def test_a_column_of_other_bounds_or_digits_shows(shown: dict[tuple[str, str], Any], case: Case) -> None:
    assert shown[case.what, case.column][: len(case.values)] == [str(text).encode() for _, text in case.values]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.what)
def test_other_columns_are_refused_by_name(row: Row) -> None:
    source = parse_connect_schema(row.schema)
    assert set(row.accepts) <= set(TARGETS)
    for target in sorted(set(TARGETS) - set(row.accepts)):
        with pytest.raises(TableError, match="'the column'") as caught:
            converter(source, Column("the column", target), encoding="json", policy=ValuePolicy())
        assert caught.value.hint


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.what)
def test_null_goes_into_every_column_that_can_hold_it(row: Row) -> None:
    source = parse_connect_schema(row.schema)
    for target in row.accepts:
        made = converter(source, Column("x", target), encoding="json", policy=ValuePolicy())
        assert made.convert([None, None]).array.null_count == 2


@pytest.mark.parametrize(
    "text",
    [
        *("[1]", "1", '"a"', "null", "", "{", '{"a":1,"a":2}', '{"a":{"b":1},"a.b":2}', '{"a":1e400}', '{"a":NaN}'),
        *('{"a":"\\ud800"}', '{"a":' * 1200 + "1" + "}" * 1200, '{"x":[{"a":1,"a":2}]}'),
    ],
    ids=lambda text: text[:24],
)
def test_json_that_the_server_refuses_is_one_bad_record_among_good_ones(text: str) -> None:
    column = Column("x", "JSON")
    source = parse_connect_schema(field("string", DATA + "Json"))
    with pytest.raises(OutOfRange):
        converter(source, column, encoding="json", policy=ValuePolicy()).convert(['{"a":1}', text])
    with pytest.raises(OutOfRange):  # the column would store its default
        converter(source, column, encoding="json", policy=ValuePolicy(out_of_range="null")).convert([text])
    may_be_null = Column("x", "Nullable(JSON)")
    null = converter(source, may_be_null, encoding="json", policy=ValuePolicy(out_of_range="null"))
    assert null.convert(['{"a":1}', text]).array.to_pylist() == ['{"a":1}', None]


def test_json_that_the_server_takes_is_not_refused(engine: Engine) -> None:
    source = parse_connect_schema(field("string", DATA + "Json"))
    made = converter(source, Column("x", "JSON"), encoding="json", policy=ValuePolicy())
    texts = [
        "{}",
        ' {"a": [{"b":1},{"b":2}]}',
        '{"a":{"b":1,"c":{}},"a.d":2}',
        '{"a":18446744073709551615}',
        '{"":null}',
    ]
    assert len(stored(engine, [("JSON", made.convert(texts).array)])[0]) == len(texts)
