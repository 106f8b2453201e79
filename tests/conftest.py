"""Fixtures that tests of several packages share."""

from tests.support.kafka import broker, kafka, mock_kafka

__all__ = ["broker", "kafka", "mock_kafka"]
