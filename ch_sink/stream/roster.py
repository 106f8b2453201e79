"""The streams of a job with their standings: which may run now, what becomes of one that fails, what operators ask for.

`look` exchanges standings with one ledger and is called in a thread for each of them, so that an unavailable ledger
holds up no stream of another one. Everything else is called by the job's loop and neither blocks nor raises.
"""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ch_sink.errors import ChSinkError, ClickHouseError, LedgerConflict, StreamFailed, in_one_line
from ch_sink.model.counts import counted
from ch_sink.observe.stream import Standing
from ch_sink.ports.ledger import Alive, Compared, RecordedState, StreamStates
from ch_sink.stream.claims import born
from ch_sink.stream.standing import Member, read_current

log = logging.getLogger("ch_sink")

BEAT = 15.0
"""Seconds between two entries that say that the job has its streams."""
_REPEAT = 60.0
"""Seconds between two lines about an outage."""
Kind = type[ChSinkError]


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
        self._marks: dict[StreamStates, object] = {}
        """The mark of each ledger when it was last read."""

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
        if member is not None and member.states is not None:
            self._let_go(member.states, [member])

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
            waits = (m.patience.due - now for m in self._members.values() if m.known and m.standing.state == "waiting")
            return max(0.0, min(waits, default=float("inf")))

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
        """The server of this error answers again: the other streams that wait for it need not wait any longer."""
        for other in self._members.values():
            if other.standing.state == "waiting" and type(other.failure) is type(error):
                other.patience.due = -math.inf

    def holds(self, name: str, *, claim: bool) -> None:
        """The job has the stream's claim, or has released it."""
        with self._lock:
            if name in self._members:
                self._members[name].holds = claim

    def failed(self, name: str, error: ChSinkError, *, settled: bool = True) -> None:
        """The stream failed: it waits if that may help, else it is stopped.

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
            member.lost = isinstance(error, LedgerConflict) and not error.temporary
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
        """The newest comparisons of streams with their sources."""
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

    def paused(self, name: str) -> ChSinkError:
        """The error of a stream that should have been read, and is paused."""
        by = self.standing(name).by
        hint = "Continue with `ch_sink resume`, or let the command end that has paused it."
        return StreamFailed(f"stream {name!r} is paused by {by}", hint=hint)

    def ledgers(self) -> list[StreamStates]:
        """The tables in which the states of the streams are recorded."""
        with self._lock:
            return list(dict.fromkeys(m.states for m in self._members.values() if m.states is not None))

    def look(self, states: StreamStates) -> None:
        """Exchange states with a ledger. One that cannot be read leaves the states as they are.

        A stream whose recorded state is not known yet waits, since it may be paused.
        """
        members = self._of(states)
        try:
            mark = states.mark()
            # The mark is the older one: what comes after it is read the next time.
            if mark is None or mark != self._marks.get(states) or not all(member.known for member in members):
                self._take(read_current(states, [member.name for member in members], self._clock()))
                self._marks[states] = mark
            self._note(states, members)
            self._beat(states, members)
        except ClickHouseError as error:
            for member in members:
                if not member.known:
                    self.failed(member.name, error)

    def close(self) -> None:
        """Record what is not recorded yet, and that the job has no stream any more."""
        ledgers = self.ledgers()
        with ThreadPoolExecutor(max(1, len(ledgers))) as pool:
            list(pool.map(self._leave, ledgers))

    def _leave(self, states: StreamStates) -> None:
        members = self._of(states)
        try:
            self._note(states, members)
        except ClickHouseError as error:
            log.debug("stream states are not recorded: %s", error)
        self._let_go(states, members)

    def _of(self, states: StreamStates) -> list[Member]:
        with self._lock:
            return [member for member in self._members.values() if member.states == states]

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
            has = [member.name for member in members if member.works or member.holds]
        if any(now - self._beaten.get(name, -BEAT) >= BEAT for name in has):
            states.beat(dict.fromkeys(has, self._alive))
            self._beaten |= dict.fromkeys(has, now)

    def _let_go(self, states: StreamStates, members: Iterable[Member]) -> None:
        """Record that the job does not have these streams any more, unless another job has them."""
        names = [member.name for member in members if member.name in self._beaten]
        if not names:
            return
        try:
            found = states.read(names)
            mine = [name for name in names if (alive := found[name].alive) and alive.run_id == self._alive.run_id]
            states.beat(dict.fromkeys(mine, replace(self._alive, host="")))
        except ClickHouseError as error:
            log.debug("the end of the job is not recorded: %s", error)


@dataclass(slots=True)
class _Outage:
    began: float
    said: float
    """The time of the last line."""
    error: ChSinkError
    streams: set[str] = field(default_factory=set)


class Outages:
    """Log lines about outages: a line when one begins, one a minute, one when it ends, however many streams wait.

    An outage is known by the type of its error, which says which server is unavailable. Times are seconds of a clock
    that never steps back.
    """

    def __init__(self) -> None:
        self._open: dict[Kind, _Outage] = {}

    def waits(self, stream: str, error: ChSinkError, now: float) -> None:
        """The stream waits because of this error."""
        for other in [kind for kind in self._open if kind is not type(error)]:
            self._leave(other, stream)
        found = self._open.get(type(error))
        if found is None:
            found = self._open[type(error)] = _Outage(now, now, error)
            log.warning("%s waits: %s", stream, error, extra={"stream": stream})
        found.error = error
        found.streams.add(stream)

    def over(self, stream: str, now: float) -> None:
        """The stream works again, or waits no longer for another reason."""
        for kind, outage in list(self._open.items()):
            if stream in outage.streams and self._leave(kind, stream):
                log.warning("%s continues after %s", stream, _span(now - outage.began), extra={"stream": stream})

    def remind(self, now: float) -> None:
        """Write the line of the minute."""
        for outage in self._open.values():
            if now - outage.said >= _REPEAT:
                outage.said = now
                who = counted(len(outage.streams), "stream")
                log.warning("%s waiting for %s: %s", who, _span(now - outage.began), outage.error)

    def _leave(self, kind: Kind, stream: str) -> bool:
        """Take the stream out; returns whether it was the last one."""
        outage = self._open[kind]
        outage.streams.discard(stream)
        if not outage.streams:
            del self._open[kind]
        return not outage.streams


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
