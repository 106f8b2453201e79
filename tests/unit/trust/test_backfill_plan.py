"""What a backfill knows of a partition after ranges that were read at the same time."""

from ch_sink.order import State
from ch_sink.order.state import SourceState
from ch_sink.stream.bulk import Piece
from ch_sink.trust.backfill_plan import Progress


def at(commit: int) -> State:
    return State(sources={"s": SourceState(commit=commit)})


def test_a_range_without_events_does_not_take_the_position_back() -> None:
    """Those of a topic of several tables that hold other tables' rows only."""
    read = Progress(0, at(5).to_json())
    began = read.state
    read.add(Piece(at(9), rows=3, records=3, top=9), 10, began)
    read.add(Piece(State.from_json(began)), 20, began)
    assert (read.at, read.state, read.rows, read.top) == (20, at(9).to_json(), 3, 9)
