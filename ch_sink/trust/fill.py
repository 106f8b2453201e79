"""All rows of a source table, as the stream would have stored them, in a table of any engine.

Every column that the stream fills has to come from the source: what a comparison may leave out, a table may not.
"""

from collections.abc import Callable, Sequence

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import SourceError, StreamFailed
from ch_sink.model.address import counted
from ch_sink.model.policy import Policy
from ch_sink.snapshot import DocumentReader, SourceReader
from ch_sink.table.model import TargetTable
from ch_sink.trust.load import SnapshotColumn, block, snapshot_columns
from ch_sink.trust.stoppable import Check, never_stops, until_stopped
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema

__all__ = ["Filling", "filling"]

_ROWS = 50_000
_EVERY = 500_000


class Filling:
    """What it takes to fill one table from one source table."""

    def __init__(self, columns: Sequence[SnapshotColumn], check: Check = never_stops) -> None:
        self.columns, self._check = tuple(columns), check

    def count(self, reader: SourceReader, key: Sequence[str]) -> int:
        """How many rows the source has now. Raises SourceError."""
        names = [c.source for c in self.columns if c.table.name in key] or [self.columns[0].source]
        return sum(len(batch) for batch in until_stopped(reader.rows(names, _ROWS), self._check))

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
        batches = reader.rows([column.source for column in self.columns], _ROWS)
        for batch in filter(None, until_stopped(batches, self._check)):
            rows = block(table, self.columns, batch, version)
            client.insert(table.qualified, rows, settings=PINNED, doing=f"fill {table.qualified}")
            total += len(batch)
            if total >= said:
                say(f"{counted(total, 'row')} read")
                said += _EVERY
        return total


def filling(
    table: TargetTable,
    columns: Sequence[Column],
    key: Sequence[str],
    schema: RowSchema | None,
    policy: Policy,
    reader: SourceReader,
    say: Callable[[str], None] = lambda _: None,
    check: Check = never_stops,
) -> Filling:
    """How the columns are read. Raises StreamFailed if one of them cannot be, and SourceError."""
    chosen = policy.columns
    added = {name for name, _ in chosen.add}
    wanted = [c for c in columns if c.name not in added]
    found = snapshot_columns(table, wanted, key, schema, policy, reader)
    if isinstance(reader, DocumentReader):
        return Filling(found, check)  # a field that no document has is no mistake
    lacking = [c.name for c in wanted if c.name not in {f.table.name for f in found}]
    there = reader.columns()
    own = {new: old for old, new in chosen.rename}
    absent = [name for name in lacking if own.get(name, name) not in there]
    # Of a column that is not stored, nothing but events tells whether the source has it.
    likely = {c.name for c in wanted if c.default_kind != "EPHEMERAL"}
    stated = {f.name for f in schema.fields} if schema is not None else likely
    if unknown := [name for name in absent if name in stated]:
        raise SourceError(
            f"the source table has no column {unknown[0]!r}, which {table.qualified} has",
            hint=f"Check source.table, and what the user may read of it; it sees the columns {', '.join(there)}. If "
            f"the source has dropped {unknown[0]!r}, name it in columns.exclude: all rows then have its default.",
        )
    if unread := [name for name in lacking if name not in absent]:
        raise StreamFailed(
            f"{table.qualified}: column {unread[0]!r} ({there[own.get(unread[0], unread[0])]} in the source) cannot be "
            "read as the connector sends it",
            hint="Let the topic be the source (--against topic), or let the connector take a new snapshot.",
        )
    if absent:
        say(f"{', '.join(absent)}: not in the source, left to the default")
    filled = {*added, *(c.name for c in columns), *table.system_columns}
    if kept := [c.name for c in table.columns if c.insertable and c.stored and c.name not in filled]:
        say(f"{', '.join(kept)}: not filled by the stream, left to the default")
    stored = {own.get(c.name, c.name) for c in columns}
    if others := [name for name in there if name not in stored and name not in chosen.exclude]:
        say(f"{', '.join(others)}: not in {table.qualified}, left out")
    return Filling(found, check)
