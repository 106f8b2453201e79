"""The jars of a Kafka broker."""

from pathlib import Path

from ch_sink.local.maven import Archive, fetched

__all__ = ["KAFKA_VERSION", "LOGGING", "kafka_jars"]

KAFKA_VERSION = "4.2.0"
LOGGING = Archive("org.slf4j", "slf4j-simple", "1.7.36")
"""Without it Kafka's log vanishes."""


def kafka_jars(java: Path) -> Path:
    """Folder that holds the broker's jars (46 files, 43 MB); fetches them if it does not exist yet.

    Raises ArchivesUnavailable, and OSError when the cache folder cannot be written.
    """
    return fetched(f"kafka-{KAFKA_VERSION}", [Archive("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), LOGGING], java)
