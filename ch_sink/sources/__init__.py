"""Source systems: positions and quirks."""

from ch_sink.sources.base import (
    FLATTENED,
    Flattened,
    NoBlock,
    Positions,
    RefusedConnector,
    Source,
    refusal,
    refusal_of_cells,
)
from ch_sink.sources.logs import DB2, MYSQL, ORACLE, POSTGRES, SQLSERVER
from ch_sink.sources.unordered import MONGODB, SINGLESTORE, STATED, Other, other

__all__ = [
    "FLATTENED",
    "SOURCES",
    "STATED",
    "Flattened",
    "NoBlock",
    "Other",
    "Positions",
    "RefusedConnector",
    "Source",
    "refusal",
    "refusal_of_cells",
    "source_for",
]

SOURCES: tuple[Source, ...] = (MYSQL, POSTGRES, SQLSERVER, ORACLE, DB2, SINGLESTORE, MONGODB)


def source_for(connector: str) -> Source:
    """The source system of a ``source.connector`` value; `Other`, ordered by Kafka alone, for one not listed, or empty.

    Batches of flattened events have the connector ``flattened`` or ``flattened:<connector>``.
    Raises RefusedConnector for a connector whose events are not rows (`refusal`).
    """
    form, colon, inner = connector.partition(":")
    if form == FLATTENED:
        return Flattened(connector, source_for(inner) if colon else None)
    if connector == STATED.name:
        return STATED
    refused = refusal(connector)
    if refused is not None:
        raise refused
    for source in SOURCES:
        if connector in source.connectors:
            return source
    return other(connector)
