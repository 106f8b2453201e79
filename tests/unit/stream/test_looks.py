"""A broker that does not answer for long delays only what has nothing else to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.errors import ChSinkError
from ch_sink.model.values import TopicState
from ch_sink.stream.job_work import Ended
from ch_sink.stream.lanes import InlineLanes, Kind
from ch_sink.stream.looks import PATIENCE
from tests.support.job import MemoryJob

_LONG = 20.0


class SlowLooks(InlineLanes[Ended]):
    """Answers of clusters that are ``away`` take long, and say what was true when they were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Callable[[Sequence[str]], bool] = lambda _: False
        self._held: list[tuple[float, Ended]] = []

    def start(self, kind: Kind, work: Any) -> None:
        if kind == "look" and self.away([stream.topic for stream in work.args[1]]):
            work(lambda answer: self._held.append((self.clock + _LONG, answer)))
        else:
            super().start(kind, work)

    def wait(self, seconds: float) -> list[Ended]:
        found = super().wait(seconds)
        for held in [h for h in self._held if h[0] <= self.clock]:
            self._held.remove(held)
            found.append(held[1])
        return found


@dataclass
class Cluster:
    """A Kafka cluster of its own."""

    job: MemoryJob

    def states(self, topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        return dict(self.job.states(topics))


def test_streams_of_other_clusters_and_those_with_work_do_not_wait_for_a_broker_that_is_away() -> None:
    lanes = SlowLooks()
    job = MemoryJob(lanes=lanes)
    for name, offsets in (("busy", 600), ("idle", 10), ("other", 10)):
        job.add(name, offsets)
    job.clusters["other"] = Cluster(job)
    lanes.away = lambda topics: lanes.clock < 10 and "other" not in topics
    moments: dict[str, list[tuple[float, int]]] = {"busy": [], "idle": [], "other": []}

    def stopping() -> bool:
        if lanes.clock > 1.5 and job.covered("other").get(0) == 10:
            job.grow("other", 5)
            job.grow("idle", 5)
        for name, seen in moments.items():
            seen.append((lanes.clock, job.covered(name).get(0, 0)))
        return lanes.clock > _LONG + 5

    assert job.run(limit=50, stopping=stopping) == {}

    def done_at(name: str, offsets: int) -> float:
        return next(clock for clock, reached in moments[name] if reached >= offsets)

    assert done_at("busy", 600) < PATIENCE + 2
    assert done_at("other", 15) < 4
    assert _LONG <= done_at("idle", 15) < _LONG + 3


def test_an_answer_that_comes_after_the_stream_was_opened_anew_is_not_taken_for_its_state_now() -> None:
    lanes = SlowLooks()
    job = MemoryJob(lanes=lanes)
    job.add("a", 10)
    lanes.away = lambda _: lanes.clock < 10
    steps = iter(
        [(2.0, lambda: job.ask("pause", "a")), (5.0, lambda: job.grow("a", 40)), (6.0, lambda: job.ask("resume", "a"))]
    )
    step = next(steps)
    reached: list[tuple[float, int]] = []

    def stopping() -> bool:
        nonlocal step
        if step is not None and lanes.clock >= step[0]:
            step[1]()
            step = next(steps, None)  # type: ignore[assignment]
        reached.append((lanes.clock, job.covered("a").get(0, 0)))
        return lanes.clock > _LONG + 10

    assert job.run(stopping=stopping) == {}
    assert next(clock for clock, offset in reached if offset == 50) < 10, "it was opened, and read what was there"
    assert job.job is not None
    assert job.job.roster.standing("a").state == "running", "the old answer says that the topic ends at 10"
