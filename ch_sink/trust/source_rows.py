"""The rows of the source, read into the shadow by one process or by several."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from ch_sink.errors import ConfigError
from ch_sink.snapshot import DivisibleReader, SourceReader
from ch_sink.table.model import TargetTable
from ch_sink.trust.load import ROWS, SnapshotColumn, expect_unique, lacking_columns, load, snapshot_columns, store
from ch_sink.trust.parallel import LEAST, PARTS, Filling, load_parts
from ch_sink.trust.stoppable import until_stopped
from ch_sink.trust.subject import Options, Subject
from ch_sink.types.column import Column

__all__ = ["ReadSource", "read_source"]


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What was read of a source table."""

    columns: tuple[Column, ...]
    """The columns of the table whose values the source gives."""
    passes: int
    """The source's position after the reading."""
    lacking: tuple[str, ...]
    """Columns of the source that the table lacks."""


def read_source(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    wanted: tuple[Column, ...],
    version: int,
    say: Callable[[str], None],
) -> ReadSource:
    """Fill the shadow with the source's rows.

    The rows get the version of what the stream had applied before they were read: every event from there on wins.
    Rows without a key cannot win: what an event touches from there on may be counted twice (`_drop_touched`).
    """
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source",
            hint="Add source.url, source.username and source.password, or compare --against topic.",
        )
    with closing(subject.source()) as reader:
        chosen = snapshot_columns(subject.table, wanted, subject.key, subject.schema, subject.settings.policy, reader)
        say("reading the source")
        rows = _load(subject, options, shadow, wanted, chosen, reader, version, say)
        passes = reader.position()
        lacking = lacking_columns(subject.table, subject.settings.policy, reader)
    if subject.key:
        expect_unique(subject.client, shadow, subject.key, rows)
    names = {*(column.table.name for column in chosen), *dict(shadow.added)}
    return ReadSource(tuple(column for column in wanted if column.name in names), max(passes, 1), lacking)


def _load(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    wanted: tuple[Column, ...],
    chosen: Sequence[SnapshotColumn],
    reader: SourceReader,
    version: int,
    say: Callable[[str], None],
) -> int:
    """Fill the shadow: by several processes, if the table is large and the source can be divided."""
    if options.bounds is not None and isinstance(reader, DivisibleReader):
        [column] = [one.source for one in chosen if one.table.name == subject.key[0]]
        batches = reader.part(reader.between(column, *options.bounds), [one.source for one in chosen], ROWS)
        return store(subject.client, shadow, chosen, until_stopped(batches, subject.check), version, "")
    processes = options.parallel or min(4, os.cpu_count() or 1)
    if processes > 1 and isinstance(reader, DivisibleReader) and (options.parallel or reader.estimate() >= LEAST):
        parts = reader.parts(processes * PARTS)
        if len(parts) > 1:
            policy = subject.settings.policy
            server, table = subject.client.settings, subject.table
            filling = Filling(
                reader.address, server, table, shadow, wanted, subject.key, subject.schema, policy, version
            )
            return load_parts(filling, parts, processes, say, subject.check)
    return load(subject.client, shadow, chosen, reader, version, subject.check)
