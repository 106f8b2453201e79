"""Source systems: positions and quirks, one small module each."""

from ch_sink.source.base import Positions, Source
from ch_sink.source.db2 import DB2
from ch_sink.source.flattened import FLATTENED, Flattened
from ch_sink.source.mongodb import MONGODB
from ch_sink.source.mysql import MYSQL
from ch_sink.source.oracle import ORACLE
from ch_sink.source.other import Other, other
from ch_sink.source.postgres import POSTGRES
from ch_sink.source.singlestore import SINGLESTORE
from ch_sink.source.sqlserver import SQLSERVER

__all__ = ["FLATTENED", "SOURCES", "Flattened", "Other", "Positions", "Source", "source_for"]

SOURCES: tuple[Source, ...] = (MYSQL, POSTGRES, SQLSERVER, ORACLE, DB2, SINGLESTORE, MONGODB)


def source_for(connector: str) -> Source:
    """The source system of a ``source.connector`` value; `Other`, ordered by Kafka alone, for one not listed.

    Batches of flattened events have the connector ``flattened`` or ``flattened:<connector>``.
    """
    form, colon, inner = connector.partition(":")
    if form == FLATTENED:
        return Flattened(connector, source_for(inner) if colon else None)
    for source in SOURCES:
        if connector in source.connectors:
            return source
    return other(connector)
