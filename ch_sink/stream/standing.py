"""The state of a stream as its recorded entries say it."""

import socket

from ch_sink.observe import StreamState
from ch_sink.ports.stream_states import Alive, RecordedState
from ch_sink.stream.claims import born

__all__ = ["SILENCE", "Standing", "has_job", "seen_from_outside", "standing"]

SILENCE = 60.0
"""A job elsewhere that has recorded nothing for so many seconds counts as gone."""


Standing = StreamState


def standing(recorded: RecordedState, config: str | None = None) -> Standing:
    """What a job that has the stream, or is about to take it, does with it.

    ``config``: fingerprint of the job's configuration; a stream that stopped under another one is tried again.
    """
    request, condition = recorded.request, recorded.condition
    error, remedy = ("", "") if condition is None or recorded.asked_after else (condition.error, condition.next)
    if request is not None and request.wanted == "pause":
        return Standing("paused", request.at, condition.error if condition else "", "", request.by)
    if condition is None or recorded.asked_after:
        return Standing("running", request.at if request else 0.0)
    if condition.state == "stopped" and config not in (None, condition.config):
        return Standing("running")
    return Standing(condition.state, condition.since, error, remedy, condition.by)


def seen_from_outside(recorded: RecordedState) -> Standing:
    """The state as `ch_sink status` shows it: a stream that no job has is idle unless it is paused or stopped."""
    found = standing(recorded)
    if found.state in ("running", "waiting") and not has_job(recorded.alive, recorded.quiet):
        return Standing("idle")
    return found


def has_job(alive: Alive | None, quiet: float) -> bool:
    """Whether a job has the stream now: its process lives on this host, or it was heard of lately from another."""
    if alive is None or not alive.host:
        return False
    if alive.host == socket.gethostname():
        return bool(alive.born) and born(alive.pid) == alive.born
    return quiet < SILENCE
