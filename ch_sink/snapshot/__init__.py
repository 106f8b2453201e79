"""Rows of a source table as they are now, with the position of the source before and after they are read."""

from importlib.util import find_spec

from ch_sink.errors import ConfigError
from ch_sink.snapshot.reader import DivisibleReader, DocumentReader, Part, SourceAddress, SourceReader

__all__ = ["DivisibleReader", "DocumentReader", "Part", "SourceAddress", "SourceReader", "open_source"]

_DRIVERS = {
    "postgresql": ("psycopg", "verify"),
    "mysql": ("pymysql", "verify"),
    "sqlserver": ("pymssql", "sqlserver"),
    "mongodb": ("pymongo", "mongodb"),
}
"""Kind of source → its driver's package, the extra that installs it."""


def open_source(address: SourceAddress) -> SourceReader:
    """Connect. Raises SourceError, ConfigError if the driver is not installed."""
    driver, extra = _DRIVERS[address.kind]
    if find_spec(driver) is None:
        raise ConfigError(
            f"reading {address.kind} needs the package {driver}", hint=f"Install it: pip install 'ch-sink[{extra}]'."
        )
    if address.kind == "postgresql":
        from ch_sink.snapshot.postgres import PostgresReader

        return PostgresReader(address)
    if address.kind == "sqlserver":
        from ch_sink.snapshot.sqlserver import SqlServerReader

        return SqlServerReader(address)
    if address.kind == "mongodb":
        from ch_sink.snapshot.mongodb import MongoReader

        return MongoReader(address)
    from ch_sink.snapshot.mysql import MysqlReader

    return MysqlReader(address)
