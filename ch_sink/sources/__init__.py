"""Source systems: positions and quirks, one small module each."""

from ch_sink.sources.base import Positions, Source
from ch_sink.sources.db2 import DB2
from ch_sink.sources.flattened import FLATTENED, Flattened
from ch_sink.sources.mongodb import MONGODB
from ch_sink.sources.mysql import MYSQL
from ch_sink.sources.oracle import ORACLE
from ch_sink.sources.other import Other, other
from ch_sink.sources.postgres import POSTGRES
from ch_sink.sources.refused import refusal
from ch_sink.sources.singlestore import SINGLESTORE
from ch_sink.sources.sqlserver import SQLSERVER
from ch_sink.sources.stated import STATED

__all__ = ["FLATTENED", "SOURCES", "STATED", "Flattened", "Other", "Positions", "Source", "refusal", "source_for"]

SOURCES: tuple[Source, ...] = (MYSQL, POSTGRES, SQLSERVER, ORACLE, DB2, SINGLESTORE, MONGODB)


def source_for(connector: str) -> Source:
    """The source system of a ``source.connector`` value; `Other`, ordered by Kafka alone, for one not listed.

    Batches of flattened events have the connector ``flattened`` or ``flattened:<connector>``.
    Raises StreamFailed for a connector whose events are no rows (`refusal`).
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
