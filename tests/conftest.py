"""Fixtures that tests of several packages share."""

from tests.support.kafka import broker, kafka, mock_kafka
from tests.support.spark import spark

__all__ = ["broker", "kafka", "mock_kafka", "spark"]
