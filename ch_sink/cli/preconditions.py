"""What `ch_sink run` needs before it waits for Spark: the topic, the table, a checkpoint folder."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ch_sink.clickhouse import detect
from ch_sink.config import Config
from ch_sink.discovery.checkpoint import expect_checkpoint
from ch_sink.discovery.wiring import client_of, topic_offsets

__all__ = ["expect_ready"]

_AT_ONCE = 8
"""Streams that are checked at the same time."""


def expect_ready(configs: Sequence[Config]) -> None:
    """Raise the first stream's ChSinkError, in the order of the configurations, if something is missing."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(configs))) as pool:
        list(pool.map(_expect_one, configs))


def _expect_one(config: Config) -> None:
    expect_checkpoint(config.checkpoint)
    detect(client_of(config), config.clickhouse.database, config.clickhouse.table, config.policy())
    with topic_offsets(config) as offsets:
        offsets.state(config.kafka.topic)
