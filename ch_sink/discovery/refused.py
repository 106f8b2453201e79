"""Topics that cannot be streams of their job, shown as stopped streams named like the topic."""

from collections.abc import Mapping, Sequence

from ch_sink.config import Config, Job
from ch_sink.errors import ChSinkError
from ch_sink.observe.status import StreamStatus
from ch_sink.observe.stream import Standing

__all__ = ["refused_statuses", "stand_in"]


def stand_in(jobs: Sequence[Job], topic: str) -> Config:
    """A configuration for a topic that has none of its own: that of its file, with the topic as the stream's name."""
    mine = (job for job in jobs if job.topics is not None and job.topics.among([topic]))
    usual = next(mine, jobs[0]).usual
    kafka = usual.kafka.model_copy(update={"topic": topic})
    return usual.model_copy(update={"kafka": kafka, "stream": topic})


def refused_statuses(refused: Mapping[str, ChSinkError]) -> list[StreamStatus]:
    """The status of each such topic. It has no ledger: why it is refused is found again by each look."""
    return [
        StreamStatus(
            topic,
            topic,
            None,
            "",
            (),
            reachable=False,
            standing=Standing("stopped", 0.0, error.message, error.hint or ""),
        )
        for topic, error in sorted(refused.items())
    ]
