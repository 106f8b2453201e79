"""Source systems: positions and quirks, one small module each."""

from ch_sink.source.base import Positions, Source
from ch_sink.source.db2 import DB2
from ch_sink.source.mongodb import MONGODB
from ch_sink.source.mysql import MYSQL
from ch_sink.source.oracle import ORACLE
from ch_sink.source.other import Other, other
from ch_sink.source.postgres import POSTGRES
from ch_sink.source.singlestore import SINGLESTORE
from ch_sink.source.sqlserver import SQLSERVER

__all__ = ["SOURCES", "Other", "Positions", "Source", "source_for"]

SOURCES: tuple[Source, ...] = (MYSQL, POSTGRES, SQLSERVER, ORACLE, DB2, SINGLESTORE, MONGODB)


def source_for(connector: str) -> Source:
    """The source system of a ``source.connector`` value; `Other`, ordered by Kafka alone, for one not listed."""
    for source in SOURCES:
        if connector in source.connectors:
            return source
    return other(connector)
