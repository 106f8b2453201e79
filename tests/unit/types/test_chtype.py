"""Type texts as trees, tokens of SQL, wider types, types in UTC."""
# ruff: noqa: E501

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import TableError
from ch_sink.types.chtype import ChType, in_utc, parse_type, widened
from ch_sink.types.sql import Kind, columns_in, identifier, key_expressions, literal, quote, split_commas, tokenize
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


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("DateTime", "DateTime('UTC')"),
        ("DateTime64(3)", "DateTime64(3, 'UTC')"),
        ("Nullable(DateTime64(9, 'Europe/Berlin'))", "Nullable(DateTime64(9, 'UTC'))"),
        ("LowCardinality(Nullable(DateTime('Europe/Berlin')))", "Nullable(DateTime('UTC'))"),
        ("Map(String, Array(DateTime('Europe/Berlin')))", "Map(String, Array(DateTime('UTC')))"),
        ("Tuple(DateTime String, `DateTime b` DateTime)", "Tuple(DateTime String, `DateTime b` DateTime('UTC'))"),
        *(
            (kind, kind)
            for kind in (
                "Nullable(Int64)",
                "LowCardinality(Nullable(String))",
                "Array(Enum8('DateTime' = 1, 'it\\'s DateTime64(3)' = 2))",
                "Array(LowCardinality(DateTime))",
                "JSON(a DateTime)",
            )
        ),
    ],
)
def test_types(kind: str, wanted: str) -> None:
    assert in_utc(kind) == wanted


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("Int32", "Int64", "Int64"),
        ("Int64", "Int32", None),
        ("Int32", "Int32", None),
        ("Int32", "Nullable(Int64)", "Nullable(Int64)"),
        ("Nullable(Int32)", "Int64", "Nullable(Int64)"),
        ("Int32", "Nullable(Int32)", "Nullable(Int32)"),
        ("Int64", "Nullable(Int32)", "Nullable(Int64)"),
        ("UInt32", "Int64", None),
        ("Float32", "Float64", "Float64"),
        ("Int32", "Float64", None),
        ("String", "Int64", None),
        ("String", "Nullable(Int64)", None),
        ("String", "Nullable(String)", "Nullable(String)"),
        ("LowCardinality(String)", "Nullable(String)", "LowCardinality(Nullable(String))"),
        ("Decimal(10, 2)", "Decimal(12, 4)", "Decimal(12, 4)"),
        ("Decimal(10, 2)", "Decimal(10, 4)", "Decimal(12, 4)"),
        ("Decimal(20, 4)", "Decimal(10, 2)", None),
        ("Decimal(76, 2)", "Decimal(76, 4)", None),
        ("DateTime64(3, 'Asia/Tokyo')", "DateTime64(6, 'UTC')", "DateTime64(6, 'Asia/Tokyo')"),
        ("DateTime64(9)", "DateTime64(6)", None),
        ("DateTime64(6)", "DateTime64(9)", None),  # which holds 1677 to 2262 only: an ALTER fails at 9999-12-31
        ("Date", "Date32", "Date32"),
        ("Date32", "Date", None),
        ("UInt8", "UInt64", "UInt64"),
        ("Nullable(Int32)", "Int32", None),
        ("Decimal(10, 4)", "Decimal(10, 2)", "Decimal(12, 4)"),
        ("Array(Int32)", "Array(Int64)", None),
        ("Array(Int32)", "Nullable(Tuple(items Array(Int32)))", None),
    ],
)
def test_a_type_grows_within_its_family(old: str, new: str, wider: str | None) -> None:
    assert widened(old, new) == wider


def test_null_is_not_let_into_a_place_column() -> None:
    assert widened("Int32", "Nullable(Int32)", may_be_nullable=False) is None
    assert widened("Int32", "Nullable(Int64)", may_be_nullable=False) == "Int64"


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a, b", ["a", "b"]),
        ("f(a, b), [c, d], 'x,y', `p,q`", ["f(a, b)", "[c, d]", "'x,y'", "`p,q`"]),
        ("'it''s, ok', '\\'', b", ["'it''s, ok'", "'\\''", "b"]),
    ],
)
def test_commas(text: str, parts: list[str]) -> None:
    assert split_commas(text) == parts


@pytest.mark.parametrize(
    ("key", "elements"),
    [
        ("", []),
        ("tuple()", []),
        ("id", ["id"]),
        ("(id)", ["id"]),
        ("`we ird`", ["we ird"]),
        ("id, toDate(ts)", ["id", "toDate(ts)"]),
        ("(id, (k + 1, s))", ["id", "(k + 1, s)"]),
        ("tuple(id DESC, k ASC)", ["id", "k"]),
        ("id DESC", ["id"]),
        ("(a.b)", ["a.b"]),
        ("-id", ["-id"]),
        ("(a), (b)", ["a", "b"]),
        ("(a + b) * (c)", ["(a + b) * (c)"]),
    ],
)
def test_key_expressions(key: str, elements: list[str]) -> None:
    assert key_expressions(key) == elements


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("toDate(ts)", {"ts"}),
        ("date", {"date"}),
        ("date(ts)", {"ts"}),
        ("if(a = 'id', `we ird`, id)", {"a", "we ird", "id"}),
        ("t.x + m.keys", {"t.x", "m"}),
        ("unknown + 1", set()),
        ("'id'", set()),
    ],
)
def test_columns_in_an_expression(expression: str, found: set[str]) -> None:
    assert columns_in(expression, {"id", "ts", "a", "we ird", "date", "t.x", "t", "m"}) == found


@given(names)
def test_quoted_names_come_back(name: str) -> None:
    assert identifier(quote(name)) == name


@given(st.lists(names, min_size=1, max_size=4))
def test_any_names_and_strings_are_kept_apart(values: list[str]) -> None:
    texts = [quote(v) for v in values] + [literal(v) for v in values]
    assert split_commas(", ".join(texts)) == texts
    tokens = tokenize(" ".join(texts))
    assert [t.value for t in tokens] == values + values
    assert {t.kind for t in tokens} == {Kind.QUOTED, Kind.STRING}


@pytest.mark.parametrize("text", ["(a", "a)", "'a", "`a", "[a)", "a ¤"])
def test_unbalanced_texts_are_errors(text: str) -> None:
    with pytest.raises(TableError):
        tokenize(text)
