"""Source systems: positions and quirks, one small module each."""

from ch_sink.errors import DecodeError
from ch_sink.source.base import Positions, Source
from ch_sink.source.mysql import MYSQL
from ch_sink.source.postgres import POSTGRES
from ch_sink.source.sqlserver import SQLSERVER

__all__ = ["SOURCES", "Positions", "Source", "source_for"]

SOURCES: tuple[Source, ...] = (MYSQL, POSTGRES, SQLSERVER)


def source_for(connector: str) -> Source:
    """The source system of a ``source.connector`` value. Raises DecodeError for one that is not served."""
    for source in SOURCES:
        if connector in source.connectors:
            return source
    served = ", ".join(sorted(name for source in SOURCES for name in source.connectors))
    raise DecodeError(f"source.connector {connector!r} is not served", hint=f"served are: {served}")
