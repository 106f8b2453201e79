"""What ``check`` reports about the connector that writes the topic."""

from ch_sink.sources import Other, source_for
from ch_sink.table.checks import Finding

__all__ = ["source_finding"]


def source_finding(connector: str) -> Finding:
    """How changes of this connector are ordered; a warning if only Kafka's order is available."""
    source = source_for(connector)
    if isinstance(source, Other):
        return Finding(
            "warn",
            "source",
            f"connector {connector!r} is not known to ch_sink: changes are ordered by Kafka offset, re-delivered "
            "events are applied again, and before images are not trusted",
            "The table is exact once the stream has caught up, if each row keeps its Kafka key; in append mode a "
            "re-delivered change is stored twice. See docs/sources/other.md.",
        )
    return Finding("ok", "source", f"{connector}, ordered by {source.default_strategy}")
