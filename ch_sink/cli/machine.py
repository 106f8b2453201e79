"""What ``check`` reports of this machine: the configuration, Java, the checkpoint's folder."""

from collections.abc import Iterator
from pathlib import Path

from ch_sink.config import Config
from ch_sink.discovery.checkpoint import expect_checkpoint
from ch_sink.errors import ConfigError
from ch_sink.spark.java import MINIMUM, find_java
from ch_sink.table.checks import Finding

__all__ = ["machine_findings"]


def machine_findings(config: Config) -> Iterator[Finding]:
    """Findings that need neither Kafka nor ClickHouse."""
    yield Finding("ok", "configuration", f"stream {config.stream_name}")
    java = find_java()
    if java is not None:
        yield Finding("ok", "java", str(java))
    else:
        yield Finding(
            "fail",
            "java",
            f"no Java {MINIMUM} or newer was found, and Spark needs one",
            "Install one, or set JAVA_HOME.",
        )
    if "://" in config.checkpoint:
        return
    try:
        expect_checkpoint(config.checkpoint)
        yield Finding("ok", "checkpoint", str(Path(config.checkpoint).absolute()))
    except ConfigError as error:
        yield Finding("fail", "checkpoint", error.message, error.hint)
