"""Texts are cut only outside strings, quoted names and brackets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import TableError
from ch_sink.types.sql import Kind, columns_in, identifier, key_expressions, literal, quote, split_commas, tokenize

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
