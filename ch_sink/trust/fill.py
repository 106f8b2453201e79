"""All rows of a source table, as the stream would have stored them, in a table of any engine.

Every column that the stream fills has to come from the source: what a comparison may leave out, a table may not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.writer import PINNED
from ch_sink.decode.chosen.masks import masked
from ch_sink.errors import SourceError, StreamFailed
from ch_sink.merge import version_column
from ch_sink.model.counted import counted
from ch_sink.model.policy import Policy
from ch_sink.order import layout_for
from ch_sink.order.version import to_words
from ch_sink.snapshot import DocumentReader, SourceReader
from ch_sink.snapshot.reader import Value
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.load import SnapshotColumn, snapshot_columns
from ch_sink.types.arrow import arrow_type
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import quote

__all__ = ["Filling", "expect_unique", "filling"]

_ROWS = 50_000
_EVERY = 500_000


class Filling:
    """What it takes to fill one table from one source table."""

    def __init__(self, columns: Sequence[SnapshotColumn], policy: Policy) -> None:
        self.columns = tuple(columns)
        self._masks = dict(policy.columns.mask)
        self._key = policy.columns.mask_key

    def count(self, reader: SourceReader, key: Sequence[str]) -> int:
        """How many rows the source has now. Raises SourceError."""
        names = [c.source for c in self.columns if c.table.name in key] or [self.columns[0].source]
        return sum(len(batch) for batch in reader.rows(names, _ROWS))

    def load(
        self,
        client: Client,
        table: TargetTable,
        reader: SourceReader,
        version: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Store all rows under one version; returns their number. Raises ChSinkError."""
        total, said = 0, _EVERY
        for batch in filter(None, reader.rows([column.source for column in self.columns], _ROWS)):
            client.insert(
                table.qualified, self._block(batch, table, version), settings=PINNED, doing=f"fill {table.qualified}"
            )
            total += len(batch)
            if total >= said:
                say(f"{counted(total, 'row')} read")
                said += _EVERY
        return total

    def _block(self, batch: Sequence[tuple[Value, ...]], table: TargetTable, version: int) -> pa.Table:
        arrays = {
            column.table.name: self._array(column, values)
            for column, values in zip(self.columns, zip(*batch, strict=True), strict=True)
        }
        arrays |= {name: pa.array([value.as_py()] * len(batch), value.type) for name, value in table.added}
        return pa.table({**arrays, **_system(table, len(batch), version)})

    def _array(self, column: SnapshotColumn, values: Sequence[Value]) -> pa.Array:
        made = column.array(values)
        how = self._masks.get(column.source)
        return made if how is None else masked(made, how, self._key).cast(arrow_type(column.table.type))


def filling(
    table: TargetTable,
    columns: Sequence[Column],
    key: Sequence[str],
    schema: RowSchema | None,
    policy: Policy,
    reader: SourceReader,
    say: Callable[[str], None] = lambda _: None,
) -> Filling:
    """How the columns are read. Raises StreamFailed if one of them cannot be, and SourceError."""
    chosen = policy.columns
    added = {name for name, _ in chosen.add}
    # What is masked is text before and after.
    unmasked = replace(policy, columns=replace(chosen, mask=()))
    wanted = [c for c in columns if c.name not in added]
    found = snapshot_columns(table, wanted, [n for n in key if n not in added], schema, unmasked, reader)
    if isinstance(reader, DocumentReader):
        return Filling(found, policy)  # a field that no document has is no mistake
    lacking = [c.name for c in wanted if c.name not in {f.table.name for f in found}]
    there = reader.columns()
    own = {new: old for old, new in chosen.rename}
    absent = [name for name in lacking if own.get(name, name) not in there]
    stated = {f.name for f in schema.fields} if schema is not None else {c.name for c in wanted}
    if unknown := [name for name in absent if name in stated]:
        raise SourceError(
            f"the source table has no column {unknown[0]!r}, which {table.qualified} has",
            hint="Check source.table; its columns are " + ", ".join(there) + ".",
        )
    if unread := [name for name in lacking if name not in absent]:
        raise StreamFailed(
            f"{table.qualified}: column {unread[0]!r} ({there[own.get(unread[0], unread[0])]} in the source) cannot be "
            "read as the connector sends it",
            hint="Let the topic be the source (--against topic), or let the connector take a new snapshot.",
        )
    if absent:
        say(f"{', '.join(absent)}: not in the source, left to the default")
    stored = {own.get(c.name, c.name) for c in columns}
    if others := [name for name in there if name not in stored and name not in chosen.exclude]:
        say(f"{', '.join(others)}: not in {table.qualified}, left out")
    return Filling(found, policy)


def expect_unique(client: Client, table: TargetTable, key: Sequence[str], rows: int) -> None:
    """Raises StreamFailed if rows of the source share a key."""
    listed = ", ".join(quote(name) for name in key)
    found = client.rows(
        f"SELECT count() AS n FROM (SELECT {listed} FROM {table.qualified} GROUP BY {listed})",
        settings={"max_bytes_before_external_group_by": 1 << 30},
        doing=f"count the keys of {table.qualified}",
    )
    if int(found[0]["n"]) != rows:
        raise StreamFailed(
            f"the key ({', '.join(key)}) is not unique in the source: {rows} rows, {found[0]['n']} keys",
            hint="Set key_columns, or check source.table.",
        )


def _system(table: TargetTable, count: int, version: int) -> dict[str, pa.Array]:
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
    sign = engine.sign_column or ("_sign" if engine.family is Family.MERGE_TREE else "")
    if sign:
        out[sign] = pa.array(np.ones(count, dtype=np.int8))
    return out
