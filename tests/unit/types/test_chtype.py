"""Type texts as trees."""
# ruff: noqa: E501

import pytest

from ch_sink.errors import TableError
from ch_sink.types.chtype import ChType, parse_type
from tests.support.engine import Engine as ClickHouse

INT, TEXT = ChType("Int32"), ChType("String")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("Int32", INT),
        ("Nullable(String)", ChType("Nullable", (TEXT,))),
        ("LowCardinality(Nullable(String))", ChType("LowCardinality", (ChType("Nullable", (TEXT,)),))),
        ("Decimal(65, 30)", ChType("Decimal", (65, 30))),
        ("Decimal64(3)", ChType("Decimal", (18, 3))),
        ("Decimal(9)", ChType("Decimal", (9, 0))),
        ("DateTime64(3, 'Europe/Berlin')", ChType("DateTime64", (3, "Europe/Berlin"))),
        ("DateTime('UTC')", ChType("DateTime", ("UTC",))),
        ("Enum8('a' = 1, 'b, (c)' = -2)", ChType("Enum8", values=(("a", 1), ("b, (c)", -2)))),
        ("Enum16('it\\'s' = 1000)", ChType("Enum16", values=(("it's", 1000),))),
        ("Enum('x', 'y')", ChType("Enum8", values=(("x", 1), ("y", 2)))),
        ("FixedString(16)", ChType("FixedString", (16,))),
        ("Array(Array(Int32))", ChType("Array", (ChType("Array", (INT,)),))),
        ("Map(LowCardinality(String), Int32)", ChType("Map", (ChType("LowCardinality", (TEXT,)), INT))),
        ("Tuple(Int32, String)", ChType("Tuple", (INT, TEXT))),
        ("Tuple(a Int32, `b c` String)", ChType("Tuple", (INT, TEXT), ("a", "b c"))),
        ("Nested(x Int32, y String)", ChType("Nested", (INT, TEXT), ("x", "y"))),
        ("AggregateFunction(quantiles(0.5, 0.9), Int32)", ChType("AggregateFunction", (INT,), rest=("quantiles(0.5, 0.9)",))),
        ("SimpleAggregateFunction(max, Int32)", ChType("SimpleAggregateFunction", (INT,), rest=("max",))),
        ("JSON(max_dynamic_paths=8, a.b UInt32, SKIP c)",
         ChType("JSON", rest=("max_dynamic_paths=8", "a.b UInt32", "SKIP c"))),
        ("Dynamic(max_types=4)", ChType("Dynamic", rest=("max_types=4",))),
        ("Variant(Int32, String)", ChType("Variant", (INT, TEXT))),
        ("Point", ChType("Point")),
    ],
)  # fmt: skip
def test_type_tree(text: str, tree: ChType) -> None:
    assert parse_type(text) == tree
    assert parse_type(str(tree)) == tree


@pytest.mark.parametrize("text", ["", "Nullable(", "Array(Int32) x", "Int32)", "Enum8(1)", "Tuple(a Int32 b)", "'x'"])
def test_what_is_no_type_is_an_error(text: str) -> None:
    with pytest.raises(TableError):
        parse_type(text)


def test_facts_of_a_type() -> None:
    kind = parse_type("LowCardinality(Nullable(DateTime64(6, 'UTC')))")
    assert (kind.nullable, kind.bare.name, kind.bare.precision, kind.bare.timezone) == (True, "DateTime64", 6, "UTC")
    assert not parse_type("Array(Nullable(Int32))").nullable
    assert (parse_type("Decimal(20, 4)").precision, parse_type("Decimal(20, 4)").scale) == (20, 4)


def test_every_family_of_the_engine_can_be_read(engine: ClickHouse) -> None:
    plain = [
        row["name"]
        for row in engine.rows("SELECT name FROM system.data_type_families WHERE alias_to = '' ORDER BY name")
        if "Interval" not in row["name"]
    ]
    assert len(plain) > 40
    for name in plain:
        assert parse_type(name).name == name


@pytest.mark.parametrize(
    "expression",
    [
        "toDecimal256(1, 20)", "CAST('a', 'Enum8(''a'' = 1, ''b,)'' = 2)')", "[(1, map('a', [NULL]))]", "now64(3, 'UTC')",
        "tuple(1 AS a, 'x' AS b)", "toFixedString('a', 3)", "quantileState(0.5)(1)", "toLowCardinality(toNullable('x'))",
    ],
)  # fmt: skip
def test_type_names_that_the_engine_writes_can_be_read(engine: ClickHouse, expression: str) -> None:
    name = engine.rows(f"SELECT toTypeName({expression}) AS name")[0]["name"]
    assert parse_type(name).name == name.split("(")[0]
