"""A stream of a configuration file run to the end of its topic, in this process and without Spark."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ch_sink.config import load_job
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured

__all__ = ["run_inline"]


def run_inline(config: Path, most: int | None = None) -> None:
    """Apply what the topic holds now, at most so many offsets of it."""
    settings = load_job(config).only()
    text = settings.to_task_json()

    def execute(tasks: Sequence[Task]) -> list[TaskResult]:
        return [run_configured(text, task) for task in tasks]

    with closing(SharedTopics()) as topics:
        ports = stream_ports(settings, topics)
        coordinator = Coordinator(stream_settings(settings), ports)
        coordinator.open()
        while ranges := coordinator.plan(ports.topics.state(settings.kafka.topic), most):
            coordinator.run_batch(ranges, execute)
            if most is not None:
                break
        coordinator.close()
