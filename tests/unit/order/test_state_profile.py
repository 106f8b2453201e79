"""The profile is part of a partition's state, and states of versions without one are still read."""

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


def test_a_state_of_an_earlier_version_has_none() -> None:
    stored = (
        '{"sources":{"shop":{"epoch":1,"commit":5,"inner":0,"wraps":0,"redelivering":false,"ceiling":0}},'
        '"base_epoch":1,"floor":[0,0,0],"doubled":{},"alone":true,"strategy":"source_position"}'
    )
    state = State.from_json(stored)
    assert state.profile == UNREAD
    assert state.of("shop").commit == 5
    assert State.from_json("").profile == UNREAD
