"""Opens a source; the drivers are in the extra ``verify``."""

from importlib.util import find_spec

from ch_sink.errors import ConfigError
from ch_sink.snapshot.reader import SourceAddress, SourceReader

__all__ = ["open_source"]

_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql"}


def open_source(address: SourceAddress) -> SourceReader:
    """Connect. Raises SourceError, ConfigError if the driver is not installed."""
    driver = _DRIVERS[address.kind]
    if find_spec(driver) is None:
        raise ConfigError(
            f"reading {address.kind} needs the package {driver}", hint="Install it: pip install 'ch-sink[verify]'."
        )
    if address.kind == "postgresql":
        from ch_sink.snapshot.postgres import PostgresReader

        return PostgresReader(address)
    from ch_sink.snapshot.mysql import MysqlReader

    return MysqlReader(address)
