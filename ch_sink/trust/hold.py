"""A stream held still for a moment: its job is asked to pause through the ledger, and the claim is taken meanwhile."""

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ch_sink.errors import LedgerConflict, StreamFailed
from ch_sink.ports import Ledger, Request
from ch_sink.ports.stream_states import RecordedState, StreamStates
from ch_sink.stream.standing import has_job, standing
from ch_sink.trust.stoppable import Check, never_stops

__all__ = ["held", "runs"]

_BY = "ch_sink resync by "
_WAIT = 600.0
"""Seconds that a running batch gets to its end."""


def runs(states: StreamStates, stream: str) -> bool:
    """Whether a job works on the stream now."""
    recorded = states.read([stream])[stream]
    working = standing(recorded).state in ("running", "waiting") or _is_ours(recorded)
    return working and has_job(recorded.alive, recorded.quiet)


@contextmanager
def held(
    ledger: Ledger,
    states: StreamStates,
    stream: str,
    topic_id: str,
    say: Callable[[str], None] = lambda _: None,
    wait: float = _WAIT,
    check: Check = never_stops,
) -> Iterator[None]:
    """Nobody else works on the stream until the context ends; a stream that was paused or stopped stays so.

    A run that is killed meanwhile leaves the stream paused; the next one, or `ch_sink resume`, ends that.

    Raises StreamFailed if the running batch does not come to its end.
    """
    recorded = states.read([stream])[stream]
    ours = standing(recorded).state not in ("paused", "stopped") or _is_ours(recorded)
    if ours:
        say(f"pausing {stream}")
        by = f"{_BY}{getpass.getuser()}@{socket.gethostname()}"
        states.ask({stream: Request("pause", by, time.time())})
    try:
        _claim(ledger, states, stream, topic_id, wait, check)
        try:
            yield
        finally:
            ledger.release()
    finally:
        if ours:
            states.ask({stream: Request("resume", f"{getpass.getuser()}@{socket.gethostname()}", time.time())})


def _claim(ledger: Ledger, states: StreamStates, stream: str, topic_id: str, wait: float, check: Check) -> None:
    deadline = time.monotonic() + wait
    elsewhere = _is_elsewhere(states.read([stream])[stream])
    while True:
        conflict: LedgerConflict | None = None
        # A job on another host is displaced by the claim: it gets the time to end its batch.
        if not (elsewhere and ledger.open_intents(topic_id)):
            try:
                ledger.claim(f"resync-{uuid.uuid4().hex[:8]}")
            except LedgerConflict as error:
                conflict = error
            else:
                return
        if time.monotonic() > deadline:
            raise StreamFailed(
                f"stream {stream!r} does not come to rest: {conflict or 'its batch goes on'}",
                hint="Stop the job, or try again.",
            )
        check()
        time.sleep(0.1)


def _is_ours(recorded: RecordedState) -> bool:
    request = recorded.request
    return request is not None and request.wanted == "pause" and request.by.startswith(_BY)


def _is_elsewhere(recorded: RecordedState) -> bool:
    alive = recorded.alive
    return has_job(alive, recorded.quiet) and alive is not None and alive.host != socket.gethostname()
