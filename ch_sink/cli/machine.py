"""What ``check`` reports of this machine: the configuration, Java."""

from collections.abc import Iterator

from ch_sink.config import Config
from ch_sink.spark.installed import MINIMUM, find_java
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
