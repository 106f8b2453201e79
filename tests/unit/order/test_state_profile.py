"""The profile is part of a partition's state, and states of versions without one are still read."""

from ch_sink.model.change import Floor, Loaded
from ch_sink.model.policy import UNREAD, TopicProfile
from ch_sink.order import SourceState, State

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


def test_it_comes_back_from_the_ledger_as_it_was() -> None:
    state = State({"shop": SourceState(commit=5)}, alone=True, strategy="kafka_offset", profile=PROFILE)
    assert State.from_json(state.to_json()) == state
    assert hash(State.from_json(state.to_json()).profile) == hash(PROFILE)


def test_the_largest_positions_come_back_as_they_were() -> None:
    high = 2**80 - 1
    floor = Floor(3, high, 2**64 - 1)
    state = State({"shop": SourceState(1, high, 2**64 - 1)}, floors={"shop": floor}, loaded=Loaded(7, 8, 9))
    assert State.from_json(state.to_json()) == state


def test_the_state_before_the_first_record_has_no_profile() -> None:
    assert State.from_json("").profile == UNREAD
