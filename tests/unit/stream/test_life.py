"""What follows in a stream's life from its standing and from what its work came to."""

from typing import Any, cast

import pytest

from ch_sink.errors import ClickHouseUnavailable, LedgerConflict, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.observe.stream import Standing, StateName
from ch_sink.stream.job_stream import ACTIVE, HELD, JobStream, Phase
from ch_sink.stream.ports import StreamSettings

AWAY, BROKEN, TAKEN = ClickHouseUnavailable("no answer"), StreamFailed("no such table"), LedgerConflict("another job")


def stream(phase: Phase, *, opened: bool = True) -> JobStream:
    made = JobStream(StreamSettings("s", "t", policy_of()), cast(Any, None), cast(Any, None))
    made.phase, made.summary.opened = phase, opened
    return made


@pytest.mark.parametrize(
    ("standing", "failure", "opened", "follows"),
    [
        ("running", None, True, None),
        ("waiting", AWAY, True, Phase.WAITING),
        ("stopped", BROKEN, True, Phase.STOPPED),
        ("stopped", BROKEN, False, Phase.REFUSED),
        ("stopped", None, False, Phase.STOPPED),
        ("stopped", TAKEN, True, Phase.TAKEN),
        ("paused", None, True, Phase.PAUSED),
        ("paused", BROKEN, True, Phase.PAUSED),
    ],
)
@pytest.mark.parametrize("phase", sorted(ACTIVE, key=lambda phase: phase.value))
def test_a_stream_that_the_job_has_goes_on_or_is_held(
    phase: Phase, standing: StateName, failure: Any, opened: bool, follows: Phase | None
) -> None:
    assert stream(phase, opened=opened).next_phase(standing, failure) is (follows or phase)


@pytest.mark.parametrize("phase", sorted(HELD, key=lambda phase: phase.value))
def test_a_stream_that_is_held_goes_on_only_when_it_is_resumed(phase: Phase) -> None:
    held = stream(phase)
    assert [held.next_phase(state) for state in ("stopped", "paused")] == [phase, phase]
    assert held.next_phase("running") is Phase.OPENING
    held.become(Phase.OPENING)
    assert held.shown(Standing("running")).state == "opening"
    held.leaving = True
    assert held.next_phase("running") is Phase.LEFT


@pytest.mark.parametrize(
    ("phase", "other"),
    [(Phase.DONE, Phase.OPENING), (Phase.LEFT, Phase.OPENING), (Phase.PAUSED, Phase.LIVE), (Phase.WAITING, Phase.LIVE)],
)
def test_what_the_drawing_does_not_show_does_not_happen(phase: Phase, other: Phase) -> None:
    with pytest.raises(AssertionError, match="cannot become"):
        stream(phase).become(other)
