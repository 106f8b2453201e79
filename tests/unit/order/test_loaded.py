"""Changes that loaded rows show already are dropped, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from ch_sink.model.change import Floor, Loaded
from ch_sink.model.policy import UNREAD, TopicProfile, VersionPolicy
from ch_sink.order import Rules, SourceState, State, sequence
from tests.unit.order.test_sequence import WIDE, events


def kept(state: State, *rows: tuple[object, ...], inner_is_log: bool = False, time: int = 0) -> list[bool]:
    batch, records = events(*rows)
    batch = replace(batch, source_ts=np.full(len(batch), time))
    done = sequence(
        batch,
        records,
        state,
        Rules(WIDE, VersionPolicy(), "source_position", inner_is_log=inner_is_log),
    )
    assert done.skipped["loaded"] == done.keep.tolist().count(False)
    return done.keep.tolist()


def test_what_lies_below_the_position_is_dropped_and_what_follows_is_applied():
    state = State(loaded=Loaded(0, 50, 100))
    assert kept(state, (10, "a", 0, "c"), (49, "a", 0, "d"), (50, "a", 0, "c"), (60, "b")) == [False, False, True, True]


def test_where_inner_positions_are_places_in_the_log_they_decide():
    # The transaction before these changes ended long before the rows were loaded.
    state = State(loaded=Loaded(0, 50, 100))
    assert kept(state, (10, "a", 49, "u"), (10, "b", 51, "u"), inner_is_log=True) == [False, True]


@pytest.mark.parametrize(
    ("state", "time"),
    [
        (State(loaded=Loaded(0, 50, 100)), 101),
        (State(loaded=Loaded(0, 50, 100), sources={"s": SourceState(epoch=1)}), 0),
        (State(loaded=Loaded(0, 0, 100)), 0),
    ],
    ids=["newer than the load", "after a step back of the source", "position unknown"],
)
def test_a_change_that_the_rows_may_not_show_is_applied(state, time):
    assert kept(state, (10, "a"), time=time) == [True]


def test_a_state_takes_the_higher_one():
    state = State(loaded=Loaded(1, 50, 100))
    assert State().with_floors_of(state) == state
    assert State(loaded=Loaded(1, 60, 100)).with_floors_of(state).loaded.position == 60


def test_a_state_of_an_earlier_version_knows_of_no_load():
    assert State.from_json('{"base_epoch": 2}').loaded == Loaded()


PROFILE = TopicProfile(
    connector="flattened:mysql",
    key_columns=("id", "place"),
    key_source="row",
    key_offset=7,
    documents=False,
    null_deletes=True,
    looked_back=True,
    choices="abc",
)


HIGH = 2**80 - 1
FLOOR = Floor(3, HIGH, 2**64 - 1)


@pytest.mark.parametrize(
    "state",
    [
        State({"a": SourceState(3, 2**79, 7, 1, True)}, base_epoch=4, doubled={"0a": "7"}),
        State({"shop": SourceState(commit=5)}, alone=True, strategy="kafka_offset", profile=PROFILE),
        State({"shop": SourceState(1, HIGH, 2**64 - 1)}, floors={"shop": FLOOR}, loaded=Loaded(7, 8, 9)),
    ],
)
def test_it_comes_back_from_the_ledger_as_it_was(state: State) -> None:
    assert State.from_json(state.to_json()) == state
    assert hash(State.from_json(state.to_json()).profile) == hash(state.profile)


def test_the_state_before_the_first_record_has_no_profile() -> None:
    assert State.from_json("").profile == UNREAD
    assert State.from_json(None) == State()
