"""Values keep every byte, whether the schema's text that they repeat is kept once or with each of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.model.counts import counted
from ch_sink.model.values import (
    Enclosed,
    SourceTable,
    concatenated,
    enclosed,
    inner,
    lengths,
    net_lengths,
    source_table_of,
    taken,
)

HEADS = [b'{"schema":{"a":1},"payload":', b'{"schema":null,"payload":', b'{"schema":{"b":[2]},"payload":', b""]
pieces = st.sampled_from([*HEADS, b'{"schema":', b',"payload":', b'{"payload":', b"}", b"{}", b"null", b'{"op":"c"}'])
odd = st.lists(pieces, max_size=4).map(b"".join)
usual = st.builds(lambda head, end: head + b'{"id":1}' + end, st.sampled_from(HEADS), st.sampled_from([b"}", b"} "]))
many = st.lists(st.none() | odd | usual, max_size=8)


@given(many, many, st.sampled_from(HEADS), st.integers(0, 8), st.integers(0, 8))
def test_values_are_the_same_in_whole_and_in_part(one, two, head, start, end):
    made = enclosed(one, head)
    assert list(made) == one
    assert made == one == made
    assert [made[i] for i in range(len(made))] == one
    assert list(made[start:end]) == one[start:end]
    assert list(concatenated([made, two, enclosed(two)])) == one + two + two
    assert list(taken(made, range(0, len(one), 2))) == one[::2]
    assert [part is None for part in inner(made)] == [value is None for value in one]
    assert [part == b"" for part in inner(made)] == [value == b"" for value in one]


@given(many, st.sampled_from(HEADS))
def test_lengths_are_those_of_the_whole_values(values, head):
    expected = [len(value or b"") for value in values]
    assert lengths(values).tolist() == expected
    assert lengths(enclosed(values, head)).tolist() == expected


@given(many, many, st.sampled_from(HEADS))
def test_a_schema_counts_where_it_is_not_the_one_before(one, two, head):
    whole, last = net_lengths(enclosed(one + two))
    first, between = net_lengths(enclosed(one, head))
    second, end = net_lengths(enclosed(two), between)
    assert whole.tolist() == [*first, *second]
    assert end == last
    assert all(net <= length for net, length in zip(whole, lengths(one + two), strict=True))
    assert whole.sum() <= sum(len(value or b"") for value in one + two)


def test_a_schema_is_kept_once():
    head = HEADS[0]
    values = [head + b'{"id":%d}}' % i for i in range(9)] + [None]
    made = enclosed(values)
    assert isinstance(made, Enclosed)
    assert len({id(own) for own in made.heads[:9]}) == 1
    assert made[:9].only_head() == head
    assert made.parts == [b'{"id":%d}' % i for i in range(9)] + [None]
    assert net_lengths(made)[0].sum() == len(head) + 9 * len(b'{"id":0}')


@given(many, many, many)
def test_joined_values_count_the_same_however_they_came(one, two, three):
    whole, _ = net_lengths(enclosed(one + two + three))
    joined = concatenated([one, enclosed(two)])
    for parts in ([enclosed(one), two, three], [one, enclosed(two), three], [joined, three]):
        assert net_lengths(enclosed(concatenated(parts)))[0].tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("number", "plural", "text"),
    [(0, "", "0 rows"), (1, "", "1 row"), (2, "", "2 rows"), (12000, "", "12 000 rows"), (2, "rowen", "2 rowen")],
)
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, plural: str, text: str) -> None:
    assert counted(number, "row", plural) == text


@pytest.mark.parametrize(
    "table",
    [
        SourceTable("shop", "public", "orders"),
        SourceTable("shop", "", "orders"),
        SourceTable("", "public", "orders"),
        SourceTable("", "", "orders"),
        SourceTable("shop", "public", "orders.2024"),
    ],
)
def test_the_name_of_a_source_table_is_read_back(table: SourceTable) -> None:
    assert source_table_of(table.name, replace(table, table="another")) == table
    assert source_table_of(table.name, SourceTable()).name == table.name
