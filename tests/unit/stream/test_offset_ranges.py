"""The plan of a batch: exact starts and ends, and loud where offsets are gone."""

import pytest

from ch_sink.errors import ConfigError, DataLoss
from ch_sink.model.topic import TopicState
from ch_sink.stream.offset_ranges import Choices, StreamOffset, initial_offset, next_offset


def _state(high: dict[int, int], low: dict[int, int] | None = None, topic_id: str = "A") -> TopicState:
    return TopicState("t", topic_id, {**dict.fromkeys(high, 0), **(low or {})}, high)


def _plan(offset: StreamOffset) -> list[tuple[int, int, int]]:
    return [(found.partition, found.start, found.end) for found in offset.ranges()]


def test_the_checkpointed_offset_is_the_whole_plan() -> None:
    last = initial_offset(_state({0: 100, 1: 10}), "latest")
    assert last.ranges() == []
    planned = next_offset(last, _state({0: 300, 1: 10, 2: 40}, {2: 7}), None, Choices())
    assert _plan(planned) == [(0, 100, 300), (2, 7, 40)]
    assert StreamOffset.from_json(planned.to_json()) == planned
    assert next_offset(planned, _state({0: 300, 1: 10, 2: 40}), None, Choices()) is planned


def test_starting_offsets_by_partition() -> None:
    state = _state({0: 100, 1: 10}, {1: 3})
    assert initial_offset(state, {"0": 42}).ends == {0: 42, 1: 3}
    assert initial_offset(state, {"topic_id": "A", "offsets": {"1": 9}}).ends == {0: 0, 1: 9}
    with pytest.raises(ConfigError, match="the starting offsets name partition 7"):
        initial_offset(state, {"7": 1})
    with pytest.raises(ConfigError, match="yesterday"):
        initial_offset(state, "yesterday")
    with pytest.raises(ConfigError, match="not partition numbers"):
        initial_offset(state, {"zero": 1})


def test_retention_under_the_stream_is_loud_or_counted() -> None:
    last = StreamOffset("t", "A", {0: 0}, {0: 10})
    gone = _state({0: 100}, {0: 25})
    with pytest.raises(DataLoss, match="offset 10 is the next to be read, but the topic holds 25 to 99"):
        next_offset(last, gone, None, Choices())
    planned = next_offset(last, gone, None, Choices(on_data_loss="continue"))
    assert [(found.start, found.end, found.lost) for found in planned.ranges()] == [(25, 100, 15)]
    with pytest.raises(DataLoss, match="offset 10 is the next"):
        next_offset(last, _state({0: 4}), None, Choices())


def test_a_topic_made_anew_is_loud_or_begins_again() -> None:
    last = StreamOffset("t", "A", {0: 0}, {0: 10})
    with pytest.raises(DataLoss, match="its id is B, the checkpoint's is A"):
        next_offset(last, _state({0: 100}, topic_id="B"), None, Choices())
    planned = next_offset(last, _state({0: 100}, topic_id="B"), None, Choices(topic_recreated="restart"))
    assert (planned.topic_id, _plan(planned)) == ("B", [(0, 0, 100)])


def test_a_partition_that_went_away_is_loud() -> None:
    with pytest.raises(DataLoss, match="no longer has partition 1"):
        next_offset(StreamOffset("t", "A", {}, {0: 1, 1: 1}), _state({0: 1}), None, Choices())


def test_nothing_is_read_beyond_the_ceiling() -> None:
    last = initial_offset(_state({0: 0}), "earliest")
    planned = next_offset(last, _state({0: 90, 1: 50}), None, Choices(), ceiling={0: 60})
    assert _plan(planned) == [(0, 0, 60)]
    assert next_offset(planned, _state({0: 90, 1: 50}), None, Choices(), ceiling={0: 60}) is planned
    assert _plan(next_offset(planned, _state({0: 90, 1: 50}), None, Choices())) == [(0, 60, 90), (1, 0, 50)]
