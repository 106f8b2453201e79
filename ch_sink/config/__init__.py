"""The configuration of a stream: a YAML file, environment variables and ``--set``, checked as a whole."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ch_sink.config.model import Config
from ch_sink.config.problems import config_error
from ch_sink.config.sections import (
    ClickHouseSection,
    InitSection,
    KafkaSection,
    SparkSection,
    TablesSection,
    VersionSection,
)
from ch_sink.config.tree import read

__all__ = [
    "ClickHouseSection",
    "Config",
    "InitSection",
    "KafkaSection",
    "SparkSection",
    "TablesSection",
    "VersionSection",
    "load",
]


def load(path: str | Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Read and check one stream's configuration.

    Args:
        overrides: ``a.b=value`` texts as ``--set`` takes them.
        environ: variables such as ``CH_SINK__CLICKHOUSE__PASSWORD``; the process's own if None.

    Raises:
        ConfigError: with the file, the line of every wrong key, and the nearest valid name.
    """
    tree = read(Path(path), overrides, os.environ if environ is None else environ)
    try:
        return Config.model_validate(tree.values)
    except ValidationError as error:
        # Without its cause: pydantic's own text may show what was given.
        raise config_error(tree, error) from None
