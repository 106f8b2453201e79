"""What `ch_sink run` needs before it waits for Spark: the topic, the table, a checkpoint folder."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ch_sink.clickhouse import detect
from ch_sink.config import Config
from ch_sink.discovery.wiring import client_of, topic_offsets
from ch_sink.errors import ConfigError

__all__ = ["expect_ready"]

_AT_ONCE = 8
"""Streams that are checked at the same time."""


def expect_ready(configs: Sequence[Config]) -> None:
    """Raise the first stream's ChSinkError, in the order of the configurations, if something is missing."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(configs))) as pool:
        list(pool.map(_expect_one, configs))


def _expect_one(config: Config) -> None:
    _expect_checkpoint(config.checkpoint)
    detect(client_of(config), config.clickhouse.database, config.clickhouse.table, config.policy())
    with topic_offsets(config) as offsets:
        offsets.state(config.kafka.topic)


def _expect_checkpoint(checkpoint: str) -> None:
    if "://" in checkpoint:
        return  # a file system that only Spark can reach
    folder = Path(checkpoint).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"checkpoint {folder}: {existing} is not a folder", hint="Set checkpoint to another folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"checkpoint {folder} cannot be written",
            hint=f"Make {existing} writable, or set checkpoint to another folder.",
        )
