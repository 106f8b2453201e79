"""The rows of a source table, made what the stream would store, in the shadow."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.writer import PINNED
from ch_sink.decode.chosen.source_view import source_view
from ch_sink.decode.mongodb import DocumentTable
from ch_sink.errors import DecodeError, StreamFailed, TableError
from ch_sink.merge import version_column
from ch_sink.model.policy import Policy
from ch_sink.order import layout_for
from ch_sink.order.version import to_words
from ch_sink.snapshot import DocumentReader, SourceReader
from ch_sink.snapshot.encode import Encode, encoded, encoder, source_type
from ch_sink.snapshot.reader import Value
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.build import converter
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema, SourceType
from ch_sink.types.converter import Converter

__all__ = ["ROWS", "SnapshotColumn", "load", "snapshot_columns", "store"]

ROWS = 20_000
"""Rows of one insert."""


@dataclass(frozen=True, slots=True)
class SnapshotColumn:
    """One column, from the source to the table."""

    source: str
    """Its name there; of a collection a field, or ``""`` for the whole document."""
    table: Column
    convert: Callable[[list[Value]], pa.Array]

    def array(self, values: Sequence[Value]) -> pa.Array:
        """The values as they are inserted. Raises StreamFailed, naming the column."""
        try:
            return self.convert(list(values))
        except (DecodeError, msgspec.MsgspecError, ValueError, KeyError) as error:
            raise StreamFailed(
                f"column {self.source or self.table.name!r} of the source holds a value that cannot be read: {error}",
                hint="Give the column a type that holds it, or compare other ones: --columns.",
            ) from None


def snapshot_columns(
    table: TargetTable,
    columns: Sequence[Column],
    key: Sequence[str],
    schema: RowSchema | None,
    policy: Policy,
    reader: SourceReader,
) -> list[SnapshotColumn]:
    """The columns that can be read from the source as the stream stores them.

    Raises SourceError, and StreamFailed if one of the key's cannot.
    """
    there = reader.columns()
    if isinstance(reader, DocumentReader):
        return _document_columns(table, columns, policy)
    own = {new: old for old, new in policy.columns.rename}
    made = {*dict(policy.columns.add), *(policy.columns.target(name) for name, _ in policy.columns.mask)}
    found = []
    for column in columns:
        name = own.get(column.name, column.name)
        stated = schema.field(column.name) if schema is not None and not schema.inferred else None
        kind = stated.type if stated is not None else source_type(column)
        if name not in there or column.name in made or kind is None:
            continue
        prepared = _prepared(name, column, kind, there[name], table, policy)
        if prepared is not None:
            found.append(prepared)
    lacking = [name for name in key if name not in {c.table.name for c in found}]
    if lacking:
        raise StreamFailed(
            f"the source table has no column that gives the key column {lacking[0]!r} of {table.qualified}",
            hint="Check source.table; its columns are " + ", ".join(there) + ".",
        )
    return found


def _prepared(
    name: str, column: Column, kind: SourceType, database_type: str, table: TargetTable, policy: Policy
) -> SnapshotColumn | None:
    encode = encoder(kind, database_type, policy.values.binary_handling)
    if encode is None:
        return None
    try:
        made = converter(kind, column, encoding="json", policy=policy.values, omits=False, years=table.years)
    except TableError:
        return None
    return SnapshotColumn(name, column, _through_json(encode, made))


def _through_json(encode: Encode, into: Converter) -> Callable[[list[Value]], pa.Array]:
    """From the database's text to the connector's JSON, and from there by the stream's converter."""

    def convert(values: list[Value]) -> pa.Array:
        wire = msgspec.json.encode(encoded(encode, values))
        made: list[Any] = msgspec.json.decode(wire, type=list[into.wire | None])  # type: ignore[name-defined]
        return into.convert(made).array

    return convert


def _document_columns(table: TargetTable, columns: Sequence[Column], policy: Policy) -> list[SnapshotColumn]:
    """Columns that the stream fills from documents; those that the configuration adds are not among them."""
    documents = DocumentTable(source_view(table, policy.columns), policy)
    by_name = {column.name: column for column in documents.columns}
    return [
        SnapshotColumn(by_name[c.name].path[0] if by_name[c.name].path else "", c, documents.reader(by_name[c.name]))
        for c in columns
        if c.name in by_name
    ]


def load(
    client: Client, shadow: TargetTable, columns: Sequence[SnapshotColumn], reader: SourceReader, version: int
) -> int:
    """Store all rows under one version; returns their number. Raises ChSinkError."""
    return store(client, shadow, columns, reader.rows([column.source for column in columns], ROWS), version, "")


def store(
    client: Client,
    shadow: TargetTable,
    columns: Sequence[SnapshotColumn],
    batches: Iterable[list[tuple[Value, ...]]],
    version: int,
    label: str,
) -> int:
    """Store batches of rows; returns the number of rows. ``label`` tells these batches from others of the shadow."""
    total = 0
    for number, batch in enumerate(filter(None, batches)):
        arrays = dict(
            zip(
                (column.table.name for column in columns),
                (column.array(values) for column, values in zip(columns, zip(*batch, strict=True), strict=True)),
                strict=True,
            )
        )
        rows = pa.table({**arrays, **_system(shadow, len(batch), version)})
        # Equal blocks are different rows: only a repeated insert is stored once.
        settings = {**PINNED, "insert_deduplication_token": f"source/{label}/{number}"}
        client.insert(shadow.qualified, rows, settings=settings, doing=f"fill {shadow.qualified}")
        total += len(batch)
    return total


def _system(shadow: TargetTable, count: int, version: int) -> dict[str, pa.Array]:
    name = version_column(shadow) or "_version"
    kind = next(c.type for c in shadow.columns if c.name == name)
    out = {name: layout_for(kind).to_arrow(np.repeat(to_words([version]), count, axis=0))}
    if shadow.engine.family is Family.MERGE_TREE:
        return {**out, "_op": pa.array(["r"] * count), "_sign": pa.array(np.ones(count, dtype=np.int8))}
    return {**out, shadow.engine.is_deleted_column or "": pa.array(np.zeros(count, dtype=np.uint8))}
