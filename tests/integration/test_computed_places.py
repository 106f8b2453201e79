"""Where a table keeps a row is computed: by columns that the server computes from others, or by an expression."""

import pytest

from tests.support.hand import postgres
from tests.support.hand_tables import Make, each_engine, insert, key, row

pytestmark = pytest.mark.integration

LENGTH = "length(ifNull(v, ''))"


@each_engine
@pytest.mark.parametrize("kind", ["MATERIALIZED", "DEFAULT"])
@pytest.mark.parametrize("layout", [{"order": "id, w"}, {"tail": "PARTITION BY w % 2"}, {"order": "id, twice"}])
def test_a_row_leaves_a_place_that_is_computed_from_its_values(
    make: Make, engine: str, kind: str, layout: dict[str, str]
) -> None:
    """Events state what they change, as with REPLICA IDENTITY DEFAULT."""
    more = f"w UInt64 {kind} {LENGTH}, twice UInt64 MATERIALIZED w * 2"
    fed = make(engine, more=more, **layout)
    fed.feed([insert(i, "a", 100 + i) for i in (1, 2, 3)])
    fed.feed([postgres("u", key(1), None, row(1, "longer"), 10**15, 10**15)])
    fed.feed([postgres("d", key(2), row(2, None), None, 10**15, 10**15 + 1)])
    live = [(1, "longer"), (3, "a")]
    assert [found[:2] for found in fed.view()] == live
    fed.merge()
    assert [found[:2] for found in fed.view()] == live
