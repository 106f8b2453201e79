"""The standing of a stream as its recorded entries say it, and as a member of a job has it.

running ──temporary error──▶ waiting ──pause over──▶ running
│                            └──────retry_for over──▶ stopped
├──any other error──▶ stopped ──request to resume──▶ running
└──request to pause──▶ paused ──request to resume──▶ running
"""

import math
import socket
from dataclasses import dataclass, field

from ch_sink.errors import ChSinkError
from ch_sink.observe.stream import Standing
from ch_sink.ports.ledger import Alive, Compared, Condition, RecordedState, Request, StreamStates
from ch_sink.stream.claims import runs
from ch_sink.stream.pace import Patience

SILENCE = 60.0
"""A job elsewhere that has recorded nothing for so many seconds counts as gone."""


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
        return runs(alive.pid, alive.born)
    return quiet < SILENCE


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
    settled: bool = True
    """A person must settle its error: a job that starts with the same configuration does not try again."""
    compared: Compared | None = None
    """What `ch_sink verify` found last."""
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
        """What the job found."""
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
