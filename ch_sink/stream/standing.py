"""The standing of a stream as its recorded entries say it, and as a member of a job has it.

running ──temporary error──▶ waiting ──pause over──▶ running
│                            └──────retry_for over──▶ stopped
├──any other error──▶ stopped ──request to resume──▶ running
└──request to pause──▶ paused ──request to resume──▶ running

A command whose writes no version orders against the stream's holds the stream: it asks for a pause and takes the claim,
so that a job which did not hear of it cannot write either.
"""

import getpass
import math
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ch_sink.errors import ChSinkError, LedgerConflict, StreamFailed
from ch_sink.observe.stream import Standing
from ch_sink.ports import Claim
from ch_sink.ports.ledger import Alive, Compared, Condition, Ledger, RecordedState, Request, StreamStates
from ch_sink.stream.claims import born, runs
from ch_sink.stream.pace import Patience

SILENCE = 60.0
"""A job elsewhere that has recorded nothing for so many seconds counts as gone."""
_COMMAND = "ch_sink "
"""The prefix of a command's name that asks for a pause; a person's has no space."""
_PROCESS = re.compile(r"@(.*), process (\d+):(\d*)")
"""The suffix: the host, the process and its start time, since a container's have the same id each time."""
_WAIT = 600.0
"""Seconds that a running batch gets to its end."""
_UNHEARD = 5.0
"""The same where no job is heard of: a DataFrame's stream hears of requests with its next batch."""


def standing(recorded: RecordedState, config: str | None = None) -> Standing:
    """The standing of a stream for a job that has it or is about to take it.

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
        return runs(alive.pid, alive.born)
    return quiet < SILENCE


def works(states: StreamStates, stream: str) -> bool:
    """Whether a job works on the stream now, or does again once a command no longer holds it."""
    recorded = states.read([stream])[stream]
    held_by_command = _is_of_command(recorded) and not left_paused(recorded)
    working = standing(recorded).state in ("running", "waiting") or held_by_command
    return working and has_job(recorded.alive, recorded.quiet)


@contextmanager
def held(
    ledger: Ledger,
    states: StreamStates,
    what: str,
    *,
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Claim]:
    """Nobody else works on the stream until the context ends; one that was or is paused or stopped by others stays so.

    A command that is killed meanwhile leaves the stream paused; a job that begins on its host, the next command, or
    `ch_sink resume` ends that.

    Args:
        what: the command.
        check: called while it waits.

    Raises StreamFailed if the running batch does not come to its end.
    """
    stream, me = ledger.stream, person()
    recorded = states.read([stream])[stream]
    ours = standing(recorded).state not in ("paused", "stopped") or _may_go_on(recorded)
    if ours:
        say(f"pausing {stream}")
        states.ask({stream: Request("pause", f"{_COMMAND}{what} by {me}, process {_process()}", time.time())})
    try:
        claim = _claim(ledger, states, what, check)
        try:
            yield claim
        finally:
            ledger.release()
    finally:
        if ours and _may_go_on(states.read([stream])[stream]):
            states.ask({stream: Request("resume", me, time.time())})


def _claim(ledger: Ledger, states: StreamStates, what: str, check: Callable[[], None]) -> Claim:
    began = time.monotonic()
    while True:
        recorded = states.read([ledger.stream])[ledger.stream]
        # A claim displaces a job on another host. One that is heard of lets the stream go by itself, after its batch.
        hears, alive = has_job(recorded.alive, recorded.quiet), recorded.alive
        owner = ledger.owner() if hears else None
        if owner is None or owner.host == socket.gethostname() or (alive is not None and alive.host != owner.host):
            try:
                return ledger.claim(f"{what.replace(' ', '-')}-{uuid.uuid4().hex[:8]}")
            except LedgerConflict as error:
                busy = str(error)
        else:
            busy = f"its batch is still running, in process {owner.pid} on {owner.host}"
        if time.monotonic() - began > (_WAIT if hears else _UNHEARD):
            raise StreamFailed(f"stream {ledger.stream!r} does not pause: {busy}", hint="Stop the job, or try again.")
        check()
        time.sleep(0.1)


def _may_go_on(recorded: RecordedState) -> bool:
    """Whether nobody has paused the stream but the command, and its last batch has not stopped it since."""
    condition = recorded.condition
    stopped = condition is not None and condition.state == "stopped" and not recorded.asked_after
    return _is_of_command(recorded) and not stopped


def left_paused(recorded: RecordedState) -> bool:
    """Whether a command of this host has paused the stream, and its process is gone."""
    found = _PROCESS.search(recorded.request.by) if recorded.request is not None and _is_of_command(recorded) else None
    if found is None or found[1] != socket.gethostname():
        return False
    return _gone(int(found[2]), found[3]) and _may_go_on(recorded)


def read_current(states: StreamStates, names: Sequence[str], now: float) -> dict[str, RecordedState]:
    """The recorded states, after ending the pauses of commands that were killed. ``now``: seconds since 1970."""
    found = states.read(names)
    left = [name for name, recorded in found.items() if left_paused(recorded)]
    if not left:
        return found
    states.ask(dict.fromkeys(left, Request("resume", "the job, since the command was killed", now)))
    return states.read(names)


def _gone(process: int, started: str) -> bool:
    """Whether the process has certainly ended: the kernel may hide those of other users."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return born(process) not in ("", started)


def person() -> str:
    """The person who asks: the user, by number if a container's has no name, and the host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _process() -> str:
    return f"{os.getpid()}:{born(os.getpid())}"


def _is_of_command(recorded: RecordedState) -> bool:
    request = recorded.request
    return request is not None and request.wanted == "pause" and request.by.startswith(_COMMAND)


@dataclass(slots=True)
class Member:
    """One stream of the job."""

    name: str
    states: StreamStates | None
    """Shared by the streams of one ledger; None if the stream has none, so that nobody can ask for anything."""
    config: str = ""
    """Fingerprint of the configuration."""
    patience: Patience = field(default_factory=Patience)
    standing: Standing = field(default_factory=lambda: Standing("running"))
    failure: ChSinkError | None = None
    """The error of a stream that waits or is stopped."""
    known: bool = False
    """Its recorded state was read."""
    lost: bool = False
    """Another job has it: nothing is recorded."""
    holds: bool = False
    """The job has the stream's claim: also while the batch of a stream that was paused comes to its end."""
    settled: bool = True
    """A person must settle its error: a job that starts with the same configuration does not try again."""
    compared: Compared | None = None
    """The result of the last `ch_sink verify`."""
    _request: Request | None = None
    """The last request that was followed."""
    _noted: bool = True
    """The ledger has the condition."""

    @property
    def works(self) -> bool:
        """Whether the job has the stream: it runs, or waits for a server."""
        return self.standing.state in ("running", "waiting")

    def take(self, recorded: RecordedState) -> str | None:
        """Follow what is recorded; returns what an operator changed: ``paused``, ``resumed``, or None."""
        request, before = recorded.request, self.standing
        if not self.known:
            self.known, self._request = True, request
            self.patience.due = -math.inf
            found = standing(recorded, self.config)
            condition = recorded.condition
            self.standing = found if found.state in ("stopped", "paused") else self.standing
            if found.state == "stopped":
                self.failure = ChSinkError(found.error, hint=found.next or None)
            elif found.state == "running" and condition is not None and condition.state != "running":
                self._noted = False  # what is recorded no longer holds
            return None
        if request is None or request == self._request:
            return None
        self._request = request
        if request.wanted == "pause":
            self.standing = Standing("paused", request.at, by=request.by)
            return "paused" if before.state != "paused" else None
        self.restart(request.at)
        return "resumed" if before.state != "running" else None

    def restart(self, now: float) -> None:
        """Run again at once."""
        self.standing, self.failure, self._noted = Standing("running", now), None, False
        self.patience.reset()

    def change(self, found: Standing, failure: ChSinkError | None) -> None:
        """Record the condition that the job found."""
        self._noted = self._noted and found.state == self.standing.state
        self.standing, self.failure = found, failure

    def unwritten(self) -> Condition | None:
        """The condition that the ledger does not have yet. What a paused stream was before is of no interest."""
        found = self.standing
        if self._noted or self.lost or not self.known or found.state not in ("running", "waiting", "stopped"):
            return None
        return Condition(
            found.state,
            found.since,
            found.error,
            found.next,
            socket.gethostname(),
            self.config if found.state == "stopped" and self.settled else "",
        )

    def written(self, condition: Condition) -> None:
        """The ledger has this condition."""
        self._noted = self._noted or (condition.state, condition.since) == (self.standing.state, self.standing.since)
