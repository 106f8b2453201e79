"""What ``check`` says of the connector that writes the topic."""

from ch_sink.sources import Other, source_for
from ch_sink.table.checks import Finding

__all__ = ["source_finding"]


def source_finding(connector: str) -> Finding:
    """How changes of this connector are ordered, and a warning where nothing but Kafka's order is known of it."""
    source = source_for(connector)
    if isinstance(source, Other):
        return Finding(
            "warn",
            "source",
            f"connector {connector!r} has no rules of its own here: its changes are ordered by Kafka alone, a stretch "
            "that is sent again is applied again, and before images are not trusted",
            "Exact once caught up, where each row keeps its Kafka key; append mode may hold a repeat twice. "
            "See docs/sources/other.md.",
        )
    return Finding("ok", "source", f"{connector}, ordered by {source.default_strategy}")
