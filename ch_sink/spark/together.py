"""Small ranges of many streams, read from Kafka by one assignment for each cluster instead of one for each range."""

import logging
from collections.abc import Sequence

from confluent_kafka import Message

from ch_sink.kafka import KafkaSettings, Span, range_consumer
from ch_sink.spark.kept import kept_stream
from ch_sink.spark.wiring import run_configured
from ch_sink.spark.worker import Run, Work
from ch_sink.stream.tasks import RangeTask, Task, TaskResult

__all__ = ["fetched_together"]

log = logging.getLogger("ch_sink")

_SMALL = 2_000
"""Offsets of the largest range that is read together with others."""
_ALL = 50_000
"""Offsets of all ranges that are read together."""
_BYTES = 32 << 20
"""Bytes of all their records, which a worker holds at once."""

_Read = dict[tuple[str, Span], list[Message]]
"""Configuration and span → its records."""


def fetched_together(work: Sequence[Work]) -> Run:
    """Read what these tasks have to read, as far as it is little; returns how each of them runs.

    A range that cannot be read this way is read by its own task, which knows what to do about it.
    """
    try:
        read = _read(work) if len(work) > 1 else {}
    except Exception as error:
        # Such as a configuration that is wrong: the task that has it fails with it.
        log.debug("ranges are read one by one: %s", error, exc_info=error)
        read = {}

    def run(config: str, task: Task) -> TaskResult:
        return run_configured(config, task, read.pop((config, _span(task)), None) if _is_small(task) else None)

    return run


def _read(work: Sequence[Work]) -> _Read:
    clusters: dict[KafkaSettings, dict[tuple[str, int], tuple[str, Span]]] = {}
    left = _ALL
    for config, task in work:
        if _is_small(task) and (span := _span(task)).end - span.start <= left:
            left -= span.end - span.start
            spans = clusters.setdefault(KafkaSettings(kept_stream(config).config.kafka.client()), {})
            # Streams of several source tables may read different ranges of one topic.
            spans.setdefault((span.topic, span.partition), (config, span))
    found: _Read = {}
    for kafka, spans in clusters.items():
        if len(spans) > 1:
            with range_consumer(kafka) as consumer:
                read = consumer.together([span for _, span in spans.values()], _BYTES // len(clusters))
            found |= {(config, span): read[span] for config, span in spans.values() if span in read}
    return found


def _is_small(task: Task) -> bool:
    return isinstance(task, RangeTask) and task.end - task.start <= _SMALL


def _span(task: Task) -> Span:
    assert isinstance(task, RangeTask)
    return Span(task.topic, task.partition, task.start, task.end)
