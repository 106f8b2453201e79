"""All rows of a source table as the stream would store them, in a shadow or in a table that is filled.

Every column that the stream fills has to come from the source: what a comparison may leave out, a filled table may not.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.clickhouse import ClickHouseWriter, Client
from ch_sink.decode.avro.columns import columns_of
from ch_sink.decode.chosen import masked, source_view, unmasked
from ch_sink.decode.mongodb.columns import DocumentTable
from ch_sink.errors import DecodeError, SourceError, StreamFailed, TableError
from ch_sink.merge.resolved import version_column
from ch_sink.model.counts import counted
from ch_sink.model.policy import ColumnPolicy, Policy
from ch_sink.observe.logs import Step
from ch_sink.order import layout_for
from ch_sink.order.version import to_words
from ch_sink.ports import Insert
from ch_sink.snapshot import DivisibleReader, DocumentReader, SourceReader
from ch_sink.snapshot.encode import Encode, encoded, encoder, is_sent, same_decimal_text, same_moment_text, source_type
from ch_sink.snapshot.reader import Value
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable
from ch_sink.trust.topic import Check, never_stops, until_stopped
from ch_sink.types.arrow import arrow_type
from ch_sink.types.build import converter
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import RowSchema, SourceType
from ch_sink.types.converter import Converter
from ch_sink.types.sql import quote
from ch_sink.types.text_columns import AnyText

ROWS = 50_000
"""Rows of one insert."""


@dataclass(frozen=True, slots=True)
class SnapshotColumn:
    """One column, from the source to the table."""

    source: str
    """Its name there; of a collection a field, or ``""`` for the whole document."""
    table: Column
    convert: Callable[[list[Value]], pa.Array]
    identifies: bool = False
    """Whether it is of the key and cannot be null: a row with a null would be stored as another one."""

    def array(self, values: Sequence[Value]) -> pa.Array:
        """The values as they are inserted. Raises StreamFailed, naming the column."""
        if self.identifies and None in values:
            raise StreamFailed(
                f"a row of the source has NULL in the key column {self.source!r}, and {self.table.name} "
                f"{self.table.type} cannot hold it: the stream makes such rows dead letters",
                hint="Set key_columns to columns that are never NULL, or use --against topic.",
            )
        try:
            return self.convert(list(values))
        except (DecodeError, msgspec.MsgspecError, ValueError, KeyError) as error:
            raise StreamFailed(
                f"column {self.source or self.table.name!r} of the source holds a value that cannot be read: {error}",
                hint="Give the column a type that holds it (`ch_sink resync CONFIG --apply` gives one to a key's). "
                "`ch_sink verify CONFIG --columns` compares the others.",
            ) from None


def snapshot_columns(
    table: TargetTable,
    columns: Sequence[Column],
    key: Sequence[str],
    schema: RowSchema | None,
    policy: Policy,
    reader: SourceReader,
) -> list[SnapshotColumn]:
    """The columns that can be read from the source as the stream stores them, masked as it masks them.

    Columns with a constant of the user's are not among them (`block`). Raises SourceError, and StreamFailed if a
    column of the key cannot be read.
    """
    chosen, added = policy.columns, dict(policy.columns.add)
    policy = replace(policy, columns=replace(chosen, mask=()))
    masks = {chosen.target(name) for name, _ in chosen.mask}
    there = reader.columns()
    wanted = [column for column in columns if column.name not in added]
    if isinstance(reader, DocumentReader):
        return [_masked(column, chosen) for column in _document_columns(table, wanted, policy)]
    named = _source_names(wanted, chosen, there)
    found = []
    for column in wanted:
        name = named[column.name]
        filled = unmasked(column) if column.name in masks else column
        stated = schema.field(column.name) if schema is not None and not schema.inferred else None
        if name not in there:
            continue
        own_type = source_type(filled, there[name], policy.values)
        kind = (stated.unmasked or stated.type) if stated is not None else own_type
        if kind is None:
            continue
        if stated is None and not same_decimal_text(kind, there[name], policy.values.decimal_handling):
            continue
        in_key = column.name in key
        # As in events, keys are never clamped: two rows of the source would become one.
        values = replace(policy.values, out_of_range="fail") if in_key else policy.values
        prepared = _prepared(name, filled, kind, there[name], table, values)
        if prepared is not None:
            identifies = in_key and not parse_type(column.type).nullable
            found.append(_masked(replace(prepared, table=column, identifies=identifies), chosen))
    lacking = [name for name in key if name not in {*added, *(c.table.name for c in found)}]
    if lacking and (read_as := there.get(named.get(lacking[0], lacking[0]))) is not None:
        raise StreamFailed(
            f"the key column {lacking[0]!r} of {table.qualified} ({read_as} in the source) cannot be read as "
            "the connector sends it",
            hint="Use the topic as the source (--against topic).",
        )
    if lacking:
        raise StreamFailed(
            f"the source table has no column that gives the key column {lacking[0]!r} of {table.qualified}",
            hint="Check source.table, and what the user may read of it; it sees the columns " + ", ".join(there) + ".",
        )
    return found


def _source_names(columns: Sequence[Column], chosen: ColumnPolicy, there: Iterable[str]) -> dict[str, str]:
    """Column of the table → column of the source, whose name the connector may have adjusted for Avro."""
    own = {new: old for old, new in chosen.rename}
    named = {column.name: own.get(column.name, column.name) for column in columns}
    adjusted = columns_of(named.values(), there)
    return {name: adjusted[of] for name, of in named.items()}


def lacking_columns(table: TargetTable, policy: Policy, reader: SourceReader) -> tuple[str, ...]:
    """Columns of the source for which the table has none, though the configuration does not leave them out.

    None of a collection, whose documents have any fields. Raises SourceError.
    """
    if isinstance(reader, DocumentReader) or policy.changes.evolve == "ignore":
        return ()
    own = {column.name for column in table.columns}
    there = reader.columns()
    adjusted = columns_of(own, there)  # the table may have the names that Avro allows
    filled = {adjusted[name] for name in own if adjusted[name] != name}
    chosen = policy.columns
    return tuple(
        name
        for name, kind in there.items()
        if name not in chosen.exclude and chosen.target(name) not in own and name not in filled and is_sent(kind)
    )


def _masked(column: SnapshotColumn, chosen: ColumnPolicy) -> SnapshotColumn:
    how = {chosen.target(name): how for name, how in chosen.mask}.get(column.table.name)
    if how is None:
        return column

    def convert(values: list[Value]) -> pa.Array:
        return masked(column.convert(values), how, chosen.mask_key).cast(arrow_type(column.table.type))

    return replace(column, convert=convert)


def _prepared(
    name: str, column: Column, kind: SourceType, database_type: str, table: TargetTable, values: ValuePolicy
) -> SnapshotColumn | None:
    encode = encoder(kind, database_type, values.binary_handling)
    if encode is None:
        return None
    try:
        made = converter(kind, column, encoding="json", policy=values, omits=False, years=table.years)
    except TableError:
        return None
    if parse_type(column.type).bare.name == "String" and not _same_text(kind, database_type, made):
        return None
    return SnapshotColumn(name, column, _through_json(encode, made))


def _same_text(kind: SourceType, database_type: str, made: Converter) -> bool:
    """Whether the stored text is known to be as the connector writes it: that of an array or object is not."""
    return made.wire is not msgspec.Raw and (isinstance(made, AnyText) or same_moment_text(kind, database_type))


def _through_json(encode: Encode, into: Converter) -> Callable[[list[Value]], pa.Array]:
    """From the database's text to the connector's JSON, and from there by the stream's converter."""

    def convert(values: list[Value]) -> pa.Array:
        wire = msgspec.json.encode(encoded(encode, values))
        # A raw value may be null already, and is in no union.
        one = into.wire if into.wire is msgspec.Raw else into.wire | None
        made: list[Any] = msgspec.json.decode(wire, type=list[one])  # type: ignore[valid-type]
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
    client: Client,
    table: TargetTable,
    columns: Sequence[SnapshotColumn],
    reader: SourceReader,
    version: int,
    check: Check = never_stops,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Store all rows under one version; returns their number. Raises ChSinkError."""
    expected = reader.estimate() if isinstance(reader, DivisibleReader) else 0

    def shown(total: int) -> None:
        say(Step(f"reading the source: {counted(total, 'row')}", total / expected if expected >= total else None))

    batches = until_stopped(reader.rows([column.source for column in columns], ROWS), check)
    return store(client, table, columns, batches, version, shown)


def store(
    client: Client,
    table: TargetTable,
    columns: Sequence[SnapshotColumn],
    batches: Iterable[list[tuple[Value, ...]]],
    version: int,
    shown: Callable[[int], None] = lambda _: None,
) -> int:
    """Store batches of rows; returns the number of rows. ``shown`` gets it after each batch."""
    total, began, run = 0, int(time.time() * 1000), uuid.uuid4().hex
    writer = ClickHouseWriter(client, table)
    for number, batch in enumerate(filter(None, batches)):
        rows = block(table, columns, batch, version, began)
        # Equal blocks are different rows: only a repeated insert is stored once.
        writer.write(Insert(rows, "of the source"), f"source/{run}/{number}")
        total += len(batch)
        shown(total)
    return total


def block(
    table: TargetTable,
    columns: Sequence[SnapshotColumn],
    batch: Sequence[tuple[Value, ...]],
    version: int,
    read: int,
) -> pa.Table:
    """Rows of the source as they are inserted into a table of any engine, all under one version.

    ``read``: when they were, in milliseconds since 1970; a history has it.
    """
    count = len(batch)
    arrays = {
        column.table.name: column.array(values)
        for column, values in zip(columns, zip(*batch, strict=True), strict=True)
    }
    added = {name: pa.array([value.as_py()] * count, value.type) for name, value in table.added}
    return pa.table({**arrays, **added, **_system(table, count, version, read)})


def _system(table: TargetTable, count: int, version: int, read: int) -> dict[str, pa.Array]:
    """The sink's own columns for rows that live."""
    out: dict[str, pa.Array] = {}
    engine, name = table.engine, version_column(table)
    column = table.column(name) if name else None
    if column is not None:
        layout = layout_for(column.type)
        out[column.name] = layout.to_arrow(np.repeat(to_words([version]), count, axis=0))
    if engine.is_deleted_column:
        out[engine.is_deleted_column] = pa.array(np.zeros(count, dtype=np.uint8))
    if engine.family is Family.MERGE_TREE:
        out["_op"] = pa.array(["r"] * count)
        if table.column(SOURCE_TIME) is not None:
            out[SOURCE_TIME] = pa.array([read] * count, pa.timestamp("ms", tz="UTC"))
    sign = engine.sign_column or ("_sign" if engine.family is Family.MERGE_TREE else "")
    if sign:
        out[sign] = pa.array(np.ones(count, dtype=np.int8))
    return out


def expect_unique(client: Client, table: TargetTable, key: Sequence[str], rows: int) -> None:
    """Raises StreamFailed if rows of the source share a key."""
    listed = ", ".join(quote(name) for name in key)
    found = client.rows(
        f"SELECT count() AS n FROM (SELECT {listed} FROM {table.qualified} GROUP BY {listed})",
        settings={"max_bytes_before_external_group_by": 1 << 30},
        of=table,
        doing=f"count the keys of {table.qualified}",
    )
    if int(found[0]["n"]) != rows:
        raise StreamFailed(
            f"the key ({', '.join(key)}) is not unique in the source: {rows} rows, {found[0]['n']} keys",
            hint="Set key_columns, or check source.table.",
        )


def count_rows(reader: SourceReader, columns: Sequence[SnapshotColumn], key: Sequence[str], check: Check) -> int:
    """How many rows the source has now. Raises SourceError."""
    names = [c.source for c in columns if c.table.name in key] or [columns[0].source]
    return sum(len(batch) for batch in until_stopped(reader.rows(names, ROWS), check))


def every_column(
    table: TargetTable,
    columns: Sequence[Column],
    key: Sequence[str],
    schema: RowSchema | None,
    policy: Policy,
    reader: SourceReader,
    say: Callable[[str], None] = lambda _: None,
) -> list[SnapshotColumn]:
    """The readings of all columns. Raises StreamFailed if one of them cannot be, and SourceError."""
    chosen = policy.columns
    added = {name for name, _ in chosen.add}
    wanted = [c for c in columns if c.name not in added]
    found = snapshot_columns(table, wanted, key, schema, policy, reader)
    if isinstance(reader, DocumentReader):
        return found  # a field that no document has is not a mistake
    lacking = [c.name for c in wanted if c.name not in {f.table.name for f in found}]
    there = reader.columns()
    named = _source_names(wanted, chosen, there)
    absent = [name for name in lacking if named[name] not in there]
    stated = {f.name for f in schema.fields} if schema is not None else {c.name for c in wanted}
    if unknown := [name for name in absent if name in stated]:
        raise SourceError(
            f"the source table has no column {unknown[0]!r}, which {table.qualified} has",
            hint=f"Check source.table, and what the user may read of it; it sees the columns {', '.join(there)}. If "
            f"the source has dropped {unknown[0]!r}, name it in columns.exclude: all rows then have its default.",
        )
    if unread := [name for name in lacking if name not in absent]:
        raise StreamFailed(
            f"{table.qualified}: column {unread[0]!r} ({there[named[unread[0]]]} in the source) cannot be "
            "read as the connector sends it",
            hint="Use the topic as the source (--against topic), or let the connector take a new snapshot.",
        )
    if absent:
        say(f"{', '.join(absent)}: not in the source, left to the default")
    filled = {*added, *(c.name for c in columns), *table.system_columns}
    if kept := [c.name for c in table.columns if c.insertable and c.name not in filled]:
        say(f"{', '.join(kept)}: not filled by the stream, left to the default")
    stored = {*named.values()}
    if others := [name for name in there if name not in stored and name not in chosen.exclude]:
        say(f"{', '.join(others)}: not in {table.qualified}, left out")
    return found
