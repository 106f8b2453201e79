"""Oracle's LOB columns, whose values the log has only where they change, and its key changes."""

import pytest

from ch_sink.model.policy import policy_of
from tests.model.shapes import Layout
from tests.support.choose import each_value
from tests.support.documents import KEYED, LAYOUTS, Orders, faults_of, row, rows_of, run_of
from tests.support.hand import PLACEHOLDER


@pytest.mark.parametrize(("engine", "layout"), each_value(KEYED, LAYOUTS))
def test_snapshot_lobs_moves_and_key_changes_equal_the_table(engine: str, layout: Layout) -> None:
    orders = Orders(layout)
    orders.send("r", 1, None, row(1, "new", "first notes"), 100, None)
    orders.send("r", 2, None, row(2, "new", None), 100, None)
    orders.send("u", 1, row(1, "new", PLACEHOLDER), row(1, "paid", PLACEHOLDER), 105, 130)
    # Made before that change, committed after it: ``scn`` is not an order.
    orders.send("u", 1, row(1, "paid", PLACEHOLDER), row(1, "sent", PLACEHOLDER, 1), 103, 140)
    orders.delete(2, row(2, "new", PLACEHOLDER), 150, 151, newkey={"ID": 3})
    orders.send("c", 3, None, row(3, "new", PLACEHOLDER), 150, 151, oldkey={"ID": 2})
    orders.send("u", 3, row(3, "new", PLACEHOLDER), row(3, "new", "at last"), 160, 161)
    # Two keys exchanged in one statement.
    for old, new, status, region in ((1, 3, "sent", 1), (3, 1, "new", 0)):
        orders.delete(old, row(old, status, PLACEHOLDER, region), 170 + old, 180, newkey={"ID": new})
        orders.send("c", new, None, row(new, status, PLACEHOLDER, region), 170 + old, 180, oldkey={"ID": old})
    truth = [row(3, "sent", "first notes", 1), row(1, "new", "at last")]
    for seed in range(10):
        assert faults_of(orders.stream.history(truth, 1 + seed % 3), engine, seed) == [], seed


@pytest.mark.parametrize("engine", ["replacing", "versioned"])
def test_an_inserted_row_never_takes_the_lob_of_the_deleted_one_before(engine: str) -> None:
    """Without ``lob.enabled`` an insert has the placeholder: a dead letter, or null where that is chosen."""
    orders = Orders(LAYOUTS[0])
    orders.send("r", 1, None, row(1, "new", "secret of another row"), 100, None)
    orders.delete(1, row(1, "new", PLACEHOLDER), 110, 111)
    orders.send("c", 1, None, row(1, "again", PLACEHOLDER), 120, 121)
    history = orders.stream.history([], 1)
    for seed in range(10):
        run = run_of(history, engine, seed, policy_of())
        assert rows_of(run) == []
        assert len(run.letters.stored) == 1
        run = run_of(history, engine, seed, policy_of(on_unresolved="null"))
        assert rows_of(run) == [row(1, "again", None)]
