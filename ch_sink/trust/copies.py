"""Copies of a table, such as a restored backup or an export: another table of the server, or Parquet files."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from typing import TYPE_CHECKING

import pyarrow as pa

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.table.model import TargetTable
from ch_sink.trust.shadow import DROP
from ch_sink.types.sql import quote

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = ["Copy", "is_file", "opened"]

_SUFFIX = "__ch_sink_copy"
_ROWS = 50_000
_SETTINGS: dict[str, str | int] = {
    **PINNED,
    # A null is no default: the copy would be called equal to a table that it does not equal.
    "input_format_null_as_default": 0,
    "insert_deduplicate": 0,
    "deduplicate_insert": "disable",
}


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that ClickHouse can read."""

    name: str
    """As the user wrote it."""
    relation: str
    """Qualified name of the table that has its rows."""
    types: Mapping[str, str]
    """Column → type."""
    replaces: bool = False
    """Whether the table is a ReplacingMergeTree."""


def is_file(name: str) -> bool:
    """Whether a copy is named as Parquet files are."""
    return name.endswith(".parquet")


@contextmanager
def opened(client: Client, name: str, target: TargetTable, database: str) -> Iterator[Copy]:
    """The copy of this name: ``database.table``, or a path that ends with ``.parquet`` and may have wildcards.

    Files are read into a table of ``database``, which is dropped when the context ends.

    Raises ConfigError if the name is neither, StreamFailed if there is no such copy or it cannot be read; ChSinkError.
    """
    if is_file(name):
        with _read(client, name, target, database) as copy:
            yield copy
        return
    place, _, table = name.partition(".")
    if not (place and table):
        raise ConfigError(
            f"--against {name} is not known",
            hint="Use --against source or topic, or name a copy: database.table, or a file that ends with .parquet.",
        )
    if (place, table) == (target.database, target.name):
        raise ConfigError(f"--against {name} is the stream's own table", hint="Name a copy of it.")
    rows = client.rows(
        "SELECT name, type, (SELECT any(engine) FROM system.tables WHERE database = {database:String} "
        "AND name = {table:String}) AS engine FROM system.columns WHERE database = {database:String} "
        "AND table = {table:String} AND default_kind != 'EPHEMERAL'",
        {"database": place, "table": table},
        doing=f"look at {name}",
    )
    if not rows:
        raise StreamFailed(
            f"there is no table {name}, or this user may not read it",
            hint="Name the copy as database.table, and grant SELECT on it.",
        )
    types = {str(row["name"]): str(row["type"]) for row in rows}
    yield Copy(name, f"{quote(place)}.{quote(table)}", types, str(rows[0]["engine"]).endswith("ReplacingMergeTree"))


@contextmanager
def _read(client: Client, path: str, target: TargetTable, database: str) -> Iterator[Copy]:
    """The files' rows in a table whose columns have the types of the target's."""
    files = sorted(glob(path, recursive=True))
    if not files:
        raise StreamFailed(f"there is no file {path}", hint="The path is one of the host on which this command runs.")
    with ExitStack() as open_:
        parts = [open_.enter_context(_parquet(file)) for file in files]
        there = [c.name for c in target.columns if c.stored and any(c.name in p.schema_arrow.names for p in parts)]
        if not there:
            names = ", ".join(parts[0].schema_arrow.names)
            raise StreamFailed(f"{path} has no column of {target.qualified}", hint=f"Its columns are {names}.")
        for file, part in zip(files, parts, strict=True):
            if lacking := [name for name in there if name not in part.schema_arrow.names]:
                raise StreamFailed(
                    f"{file} has no column {lacking[0]!r}, which other files of {path} have",
                    hint="Name files of one export.",
                )
        types = {c.name: c.type for c in target.columns if c.name in there}
        table = f"{quote(database)}.{quote(target.name + _SUFFIX)}"
        drop = f"DROP TABLE IF EXISTS {table} SYNC"
        open_.callback(_drop, client, drop)
        columns = ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
        create = (
            f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY tuple() "
            "COMMENT 'ch_sink: rows of files, for a comparison; dropped after it'"
        )
        for statement in (drop, create):
            client.command(statement, settings={**DROP, **EVERY_TYPE}, doing=f"create {table}")
        for file, part in zip(files, parts, strict=True):
            with _naming(file):
                for batch in part.iter_batches(_ROWS, columns=there):
                    rows = pa.Table.from_batches([batch])
                    client.insert(table, rows, settings=_SETTINGS, doing=f"compare with {file}")
        yield Copy(path, table, types)


def _parquet(file: str) -> "ParquetFile":
    from pyarrow.parquet import ParquetFile

    with _naming(file):
        return ParquetFile(file)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Raises StreamFailed with the file's name if it cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StreamFailed(f"{file} cannot be read: {error}", hint="Is it a Parquet file?") from None


def _drop(client: Client, statement: str) -> None:
    with suppress(ChSinkError):  # the next comparison drops it
        client.command(statement, settings=DROP, doing="drop the rows of files")
