"""The streams of a job and their states: which may run now, what becomes of one that fails, what operators ask for.

    running ──temporary error──▶ waiting ──pause over──▶ running
       │                            └──────retry_for over──▶ stopped
       ├──any other error──▶ stopped ──request to resume──▶ running
       └──request to pause──▶ paused ──request to resume──▶ running

`look` exchanges states with the ledger and is meant for a thread of its own, so that a ledger that is away holds up no
stream of another one. Everything else is called by the job's loop and neither blocks nor raises.
"""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ch_sink.errors import ChSinkError, ClickHouseError, LedgerConflict, in_one_line
from ch_sink.ports.stream_states import Alive, Compared, Condition, RecordedState, Request, StreamStates
from ch_sink.stream.claims import born
from ch_sink.stream.outages import Outages
from ch_sink.stream.patience import Patience
from ch_sink.stream.standing import Standing, standing

__all__ = ["BEAT", "Member", "Roster"]

log = logging.getLogger("ch_sink")

BEAT = 15.0
"""Seconds between two entries that say that the job has its streams."""


@dataclass(slots=True)
class Member:
    """One stream of the job."""

    name: str
    states: StreamStates
    """Shared by the streams of one ledger."""
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
        """Whether the job has the stream: it runs, or would if a server were not away."""
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


class Roster:
    """All streams of a job."""

    def __init__(
        self,
        members: Iterable[Member],
        run_id: str,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: seconds since 1970; ``steady``: seconds of a clock that never steps back."""
        self._members = {member.name: member for member in members}
        self._clock, self._steady = clock, steady
        self._lock = threading.RLock()
        self._outages = Outages()
        here = os.getpid()
        self._alive = Alive(run_id, socket.gethostname(), here, born(here))
        self._beaten: dict[str, float] = {}
        self._resumed: list[str] = []
        self._marks: dict[StreamStates, object] = {}
        """What was last read of each ledger."""

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        """A stream that joins while the job runs."""
        with self._lock:
            self._members[member.name] = member

    def configured(self, name: str, config: str) -> None:
        """The stream goes on with another configuration, of this fingerprint."""
        with self._lock:
            if name in self._members:
                self._members[name].config = config

    def remove(self, name: str) -> None:
        """A stream that leaves, because its topic is gone."""
        with self._lock:
            member = self._members.pop(name, None)
            self._outages.over(name, self._steady())
        if member is not None:
            self._let_go([member])

    def ready(self) -> list[str]:
        """The streams that may run now."""
        now = self._steady()
        with self._lock:
            self._outages.remind(now)
            return [m.name for m in self._members.values() if m.known and m.works and m.patience.due <= now]

    def next_due(self) -> float:
        """Seconds until a waiting stream may run again; infinite if none waits."""
        now = self._steady()
        with self._lock:
            waits = (m.patience.due - now for m in self._members.values() if m.standing.state == "waiting")
            return max(0.0, min(waits, default=float("inf")))

    def works(self, name: str) -> bool:
        """Whether the job still has the stream; if not, it lets its claim go."""
        with self._lock:
            member = self._members.get(name)
            return member is not None and member.works

    def working(self) -> set[str]:
        """The streams that the job has."""
        with self._lock:
            return {member.name for member in self._members.values() if member.works}

    def resumed(self) -> list[str]:
        """Streams that somebody resumed since the last call: what the job knows of them may be outdated."""
        with self._lock:
            names, self._resumed = self._resumed, []
            return names

    def worked(self, name: str) -> None:
        """The stream opened, or finished a batch."""
        with self._lock:
            member = self._members[name]
            if member.standing.state == "waiting":
                self._hurry(member.failure)
                member.change(Standing("running", self._clock()), None)
                self._outages.over(name, self._steady())
            member.patience.reset()

    def _hurry(self, error: ChSinkError | None) -> None:
        """What this error was about works again: the others that wait for it need not wait any longer."""
        for other in self._members.values():
            if other.standing.state == "waiting" and type(other.failure) is type(error):
                other.patience.due = -math.inf

    def failed(self, name: str, error: ChSinkError, *, settled: bool = True) -> None:
        """The stream failed: it waits if that may mend the error, else it is stopped.

        Args:
            settled: false if the next job may try again by itself, since this one found the error before it began. So
                it may after an error of a refused user: a fingerprint of the configuration has no passwords.
        """
        now = self._steady()
        with self._lock:
            member = self._members[name]
            if not member.works:
                return
            error_text, remedy = str(error), error.hint or ""
            # Of a stream that another job has, that job says what its state is.
            member.lost = isinstance(error, LedgerConflict)
            member.settled = settled and not error.denied
            if not member.lost and error.temporary and member.patience.failed(now):
                since = member.standing.since if member.standing.state == "waiting" else self._clock()
                member.change(Standing("waiting", since, error_text, remedy), error)
                self._outages.waits(name, error, now)
                return
            self._outages.over(name, now)
            member.change(Standing("stopped", self._clock(), error_text, remedy), error)
            log.error(
                "%s stopped: %s", name, in_one_line(error_text, remedy and f"Next: {remedy}"), extra={"stream": name}
            )

    def standing(self, name: str) -> Standing:
        """The state of one stream."""
        with self._lock:
            return self._members[name].standing

    def standings(self) -> dict[str, Standing]:
        """The state of each stream."""
        with self._lock:
            return {name: member.standing for name, member in self._members.items()}

    def comparisons(self) -> dict[str, Compared]:
        """What the newest comparisons of streams with their sources found."""
        with self._lock:
            return {m.name: m.compared for m in self._members.values() if m.compared is not None}

    def failures(self) -> dict[str, ChSinkError]:
        """The errors of the streams that are stopped."""
        with self._lock:
            return {
                name: member.failure
                for name, member in self._members.items()
                if member.standing.state == "stopped" and member.failure is not None
            }

    def look(self) -> None:
        """Exchange states with the ledger. A ledger that cannot be read leaves the states as they are.

        A stream whose recorded state is not known yet waits, since it may be paused.
        """
        for states, members in self._by_ledger().items():
            try:
                mark = states.mark()
                # The mark is the older one: what comes after it is read the next time.
                if mark is None or mark != self._marks.get(states) or not all(member.known for member in members):
                    self._take(states.read([member.name for member in members]))
                    self._marks[states] = mark
                self._note(states, members)
                self._beat(states, members)
            except ClickHouseError as error:
                for member in members:
                    if not member.known:
                        self.failed(member.name, error)

    def close(self) -> None:
        """Record what is not recorded yet, and that the job has no stream any more."""
        for states, members in self._by_ledger().items():
            try:
                self._note(states, members)
            except ClickHouseError as error:
                log.debug("states of streams are not recorded: %s", error)
        with self._lock:
            members = list(self._members.values())
        self._let_go(members)

    def _by_ledger(self) -> Mapping[StreamStates, list[Member]]:
        groups: dict[StreamStates, list[Member]] = {}
        with self._lock:
            for member in self._members.values():
                groups.setdefault(member.states, []).append(member)
        return groups

    def _take(self, found: Mapping[str, RecordedState]) -> None:
        with self._lock:
            for name, recorded in found.items():
                member = self._members.get(name)
                if member is None:
                    continue
                was_known, member.compared = member.known, recorded.compared
                changed = member.take(recorded)
                who = recorded.request.by if recorded.request else ""
                if changed:
                    log.warning("%s %s by %s", name, changed, who, extra={"stream": name})
                    self._outages.over(name, self._steady())
                if changed == "resumed":
                    member.lost = False
                    self._resumed.append(name)
                elif not was_known and member.standing.state in ("stopped", "paused"):
                    self._say_first(member)

    def _say_first(self, member: Member) -> None:
        found = member.standing
        if found.state == "paused":
            log.warning("%s is paused by %s", member.name, found.by, extra={"stream": member.name})
            return
        log.error(
            "%s is stopped: %s",
            member.name,
            in_one_line(found.error, found.next and f"Next: {found.next}", "Continue with `ch_sink resume`."),
            extra={"stream": member.name},
        )

    def _note(self, states: StreamStates, members: Iterable[Member]) -> None:
        with self._lock:
            found = {member.name: member.unwritten() for member in members}
        notes = {name: condition for name, condition in found.items() if condition is not None}
        if notes:
            states.note(notes)
            with self._lock:
                for name, condition in notes.items():
                    if name in self._members:
                        self._members[name].written(condition)

    def _beat(self, states: StreamStates, members: Iterable[Member]) -> None:
        now = self._steady()
        with self._lock:
            has = [member.name for member in members if member.works]
        if any(now - self._beaten.get(name, -BEAT) >= BEAT for name in has):
            states.beat(dict.fromkeys(has, self._alive))
            self._beaten |= dict.fromkeys(has, now)

    def _let_go(self, members: Iterable[Member]) -> None:
        """Record that the job does not have these streams any more, unless another job has them."""
        groups: dict[StreamStates, list[str]] = {}
        for member in members:
            if member.name in self._beaten:
                groups.setdefault(member.states, []).append(member.name)
        for states, names in groups.items():
            try:
                found = states.read(names)
                mine = [name for name in names if (alive := found[name].alive) and alive.run_id == self._alive.run_id]
                states.beat(dict.fromkeys(mine, replace(self._alive, host="")))
            except ClickHouseError as error:
                log.debug("the end of the job is not recorded: %s", error)
