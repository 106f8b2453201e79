"""The configuration: a YAML file of one stream or of many, environment variables and ``--set``, checked as a whole."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ch_sink.config.expansion import Expansion, expand
from ch_sink.config.job import Job, load_job, load_rows
from ch_sink.config.model import Config
from ch_sink.config.sections import (
    ClickHouseSection,
    InitSection,
    KafkaSection,
    SparkSection,
    TablesSection,
    VersionSection,
)

__all__ = [
    "ClickHouseSection",
    "Config",
    "Expansion",
    "InitSection",
    "Job",
    "KafkaSection",
    "SparkSection",
    "TablesSection",
    "VersionSection",
    "expand",
    "load",
    "load_job",
    "load_rows",
]


def load(path: str | Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Read and check the configuration of one stream.

    Args:
        overrides: ``a.b=value`` texts as ``--set`` takes them.
        environ: variables such as ``CH_SINK__CLICKHOUSE__PASSWORD``; the process's own if None.

    Raises:
        ConfigError: with the file, the line of every wrong key, and the nearest valid name; and for a file of several
            topics.
    """
    return load_job(path, overrides, environ).only()
