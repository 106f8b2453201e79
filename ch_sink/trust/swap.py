"""The exchange that ends a resync: the stream is held still, and the ledger learns of the new table.

The ledger must not know of a new table that did not come, nor may the stream go on with one of which the ledger does
not know. So what it has to learn is noted in the new table's comment before the exchange, and the stream refuses a
table with such a note until the ledger knows.
"""

import getpass
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ch_sink.errors import LedgerConflict, StreamFailed
from ch_sink.model.counts import Counts
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, Request, TableRefilled, TopicFacts
from ch_sink.ports.ledger import RecordedState, StreamStates
from ch_sink.stream.rollback import is_entered, marked
from ch_sink.stream.standing import has_job, standing
from ch_sink.trust.refill import Refill, Say

_BY = "ch_sink resync by "
_WAIT = 600.0
"""Seconds that a running batch gets to its end."""


def runs(states: StreamStates, stream: str) -> bool:
    """Whether a job works on the stream now."""
    recorded = states.read([stream])[stream]
    working = standing(recorded).state in ("running", "waiting") or _is_ours(recorded)
    return working and has_job(recorded.alive, recorded.quiet)


@contextmanager
def held(refill: Refill, topic_id: str, say: Say) -> Iterator[None]:
    """Nobody else works on the stream until the context ends; a stream that was paused or stopped stays so.

    A run that is killed meanwhile leaves the stream paused; the next one, or `ch_sink resume`, ends that.

    Raises StreamFailed if the running batch does not come to its end.
    """
    ledger, states, stream = refill.subject.ledger, refill.states, refill.stream
    recorded = states.read([stream])[stream]
    ours = standing(recorded).state not in ("paused", "stopped") or _is_ours(recorded)
    if ours:
        say(f"pausing {stream}")
        by = f"{_BY}{getpass.getuser()}@{socket.gethostname()}"
        states.ask({stream: Request("pause", by, time.time())})
    try:
        _claim(refill, topic_id)
        try:
            yield
        finally:
            ledger.release()
    finally:
        if ours:
            states.ask({stream: Request("resume", f"{getpass.getuser()}@{socket.gethostname()}", time.time())})


def _claim(refill: Refill, topic_id: str) -> None:
    ledger, stream = refill.subject.ledger, refill.stream
    columns = refill.subject.settings.policy.columns.origins()
    deadline = time.monotonic() + _WAIT
    elsewhere = _is_elsewhere(refill.states.read([stream])[stream])
    while True:
        conflict: LedgerConflict | None = None
        # A job on another host is displaced by the claim: it gets the time to end its batch.
        if not (elsewhere and ledger.open_intents(topic_id)):
            try:
                ledger.claim(f"resync-{uuid.uuid4().hex[:8]}", columns)
            except LedgerConflict as error:
                conflict = error
            else:
                return
        if time.monotonic() > deadline:
            raise StreamFailed(
                f"stream {stream!r} does not pause: {conflict or 'its batch is still running'}",
                hint="Stop the job, or try again.",
            )
        refill.subject.check()
        time.sleep(0.1)


def _is_ours(recorded: RecordedState) -> bool:
    request = recorded.request
    return request is not None and request.wanted == "pause" and request.by.startswith(_BY)


def _is_elsewhere(recorded: RecordedState) -> bool:
    alive = recorded.alive
    return has_job(alive, recorded.quiet) and alive is not None and alive.host != socket.gethostname()


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of one stream's tables. The stream is held."""

    refill: Refill
    topic: TopicFacts | None
    """Facts to record about a topic of which the stream has read nothing."""
    facts: Sequence[TableRefilled]
    results: Sequence[FinishedRange]
    """Where the stream goes on if that is behind what it has applied."""
    resolved: Mapping[int, Sequence[int]]
    """Partition → offsets of waiting changes that the new table has."""
    after: Sequence[str] = ()
    """Statements that follow: a table of another shape needs another view."""

    def carry_out(self, say: Say) -> None:
        """Exchange the tables and let the ledger know. Raises ChSinkError."""
        successor, table = self.refill.successor, self.refill.subject.table
        comment = successor.comment()
        successor.note(
            {
                "topic": asdict(self.topic) if self.topic is not None else None,
                "refilled": [asdict(fact) for fact in self.facts],
                "results": [asdict(result) for result in self.results],
                "resolved": {str(p): list(offsets) for p, offsets in self.resolved.items()},
                "comment": comment,
                "after": list(self.after),
            }
        )
        successor.take_place(say)
        successor.show(self.after)
        self._enter()
        successor.unmark(table.qualified, comment)

    def _enter(self) -> None:
        ledger = self.refill.subject.ledger
        ledger.record(*([self.topic] if self.topic is not None else []), *self.facts)
        ledger.results(self.results)
        for partition, offsets in self.resolved.items():
            self.refill.pending.resolve(self.facts[0].topic_id, partition, offsets)

    @classmethod
    def finish(cls, refill: Refill, topic: TopicState, say: Say) -> None:
        """Let the ledger know of an exchange after which a run was killed. Raises ChSinkError."""
        subject, successor = refill.subject, refill.successor
        comment = successor.comment()
        noted = marked(comment)
        if noted is None or "results" not in noted:
            return
        if not is_entered(comment, subject.ledger):
            say(f"{subject.table.qualified} was exchanged by a run that was killed before it was recorded")
            with held(refill, topic.topic_id, say):
                ended = cls._of(refill, noted)
                successor.show(ended.after)
                ended._enter()
        successor.unmark(subject.table.qualified, str(noted["comment"]))

    @classmethod
    def _of(cls, refill: Refill, noted: Mapping[str, Any]) -> "Exchange":
        return cls(
            refill,
            TopicFacts(**noted["topic"]) if noted["topic"] is not None else None,
            [TableRefilled(**fact) for fact in noted["refilled"]],
            [FinishedRange(**{**one, "counts": Counts(), "steps": ()}) for one in noted["results"]],
            {int(p): offsets for p, offsets in noted["resolved"].items()},
            noted["after"],
        )


def results_at(topic: TopicState, states: Mapping[int, tuple[int, State]]) -> list[FinishedRange]:
    """Empty results that let the stream go on at these offsets, in these states."""
    now = time.time()
    return [
        FinishedRange(topic.topic, topic.topic_id, p, offset, offset, state=state.to_json(), started=now, finished=now)
        for p, (offset, state) in sorted(states.items())
    ]
