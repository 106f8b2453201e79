"""What ``check`` reports about the connector that writes the topic."""

from collections.abc import Iterator

from ch_sink.errors import ChSinkError
from ch_sink.model.policy import Policy
from ch_sink.pipeline.target import Target
from ch_sink.sources import Other, source_for
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable

__all__ = ["order_findings", "source_finding"]


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


def order_findings(connector: str, table: TargetTable, policy: Policy) -> Iterator[Finding]:
    """What the table and the configuration take from the order of this connector's changes."""
    source = source_for(connector)
    try:
        target = Target.of(table, policy)
        strategy, told = target.strategy(source), target.tells_swaps(source)
    except ChSinkError as error:
        yield Finding("fail", "order", str(error), error.hint)
        return
    if source.deferrable and not told:
        yield Finding(
            "warn",
            "order",
            f"ordered by {strategy}, it is not known which changes belong to one transaction: where one statement "
            "swaps two keys (a deferrable constraint), one of the rows is lost",
            "Where that may happen, use envelopes, no tombstones: delete, and a version column UInt128, UInt256, "
            "UInt64 or Int64.",
        )
