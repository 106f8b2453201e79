"""Kafka: offset ranges, the consumer of a range, watermarks, group offsets, earlier records, schema registry."""

from ch_sink.kafka.consumer import KafkaHistory, RangeConsumer, range_consumer
from ch_sink.kafka.group import GroupCommits, GroupOffsets
from ch_sink.kafka.offsets import TopicOffsets, TopicWatermarks
from ch_sink.kafka.registry import schema_registry
from ch_sink.kafka.settings import KafkaSettings, redact
from ch_sink.kafka.slices import Span, slices_of

__all__ = [
    "GroupCommits",
    "GroupOffsets",
    "KafkaHistory",
    "KafkaSettings",
    "RangeConsumer",
    "Span",
    "TopicOffsets",
    "TopicWatermarks",
    "range_consumer",
    "redact",
    "schema_registry",
    "slices_of",
]
