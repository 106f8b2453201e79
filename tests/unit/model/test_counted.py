"""Numbers with their nouns."""

import pytest

from ch_sink.model.counts import counted


@pytest.mark.parametrize(
    ("number", "plural", "text"),
    [(0, "", "0 rows"), (1, "", "1 row"), (2, "", "2 rows"), (12000, "", "12 000 rows"), (2, "rowen", "2 rowen")],
)
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, plural: str, text: str) -> None:
    assert counted(number, "row", plural) == text
