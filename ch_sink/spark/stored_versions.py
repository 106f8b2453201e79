"""What the table's versions say of rows that are changes already: whether it can take them, and which it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.clickhouse import AnyKeyLookup
from ch_sink.config import Config
from ch_sink.decode.stated_rows import RowDecoder, Rows
from ch_sink.discovery.wiring import client_of
from ch_sink.errors import ConfigError
from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.order.sequence import Rules, sequence
from ch_sink.order.version import Words, to_ints
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowLookup
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import TargetTable

_EPOCHS = {"UInt128": 1 << 112, "Int128": 1 << 112, "UInt256": 1 << 112, "Int256": 1 << 112}
"""Versions from which on an epoch is in them, by the type of their column."""
_ENGINE = "Use ENGINE = ReplacingMergeTree(_version, _is_deleted) with _version UInt128, _is_deleted UInt8."


def expect_served(table: TargetTable, keys: Sequence[str]) -> None:
    """Raises ConfigError for a table in which rows of late and repeated batches cannot be distinguished."""
    place = table.qualified
    if table.engine.version_column is None or table.engine.is_deleted_column is None:
        raise ConfigError(
            f"{place} is a {table.engine.name}: changes need versions and delete marks",
            hint=_ENGINE,
        )
    version = table.column(table.engine.version_column)
    if version is None or version.type.startswith("DateTime"):
        raise ConfigError(f"the versions of {place} are times, which several changes may share", hint=_ENGINE)
    if moving := sorted(table.moves_by(keys)):
        raise ConfigError(
            f"{place} keeps a row at a place that depends on {moving[0]!r}, which is not one of the keys",
            hint="Sort and partition it by keys only: a row that comes late would not find the one it belongs to.",
        )
    for key in keys:
        if table.column(key) is None:
            raise ConfigError(
                f"{place} has no column {key!r}, which is one of the keys", hint="Add it, or name others."
            )


def expect_stated_versions(table: TargetTable, highest: int | None) -> None:
    """Raises ConfigError if the highest version is of a later epoch: no number of a change would beat its row."""
    version = table.column(table.engine.version_column or "")
    if highest and version is not None and highest >= _EPOCHS.get(version.type, highest + 1):
        raise ConfigError(
            f"{table.qualified} has rows with versions that are not change numbers",
            hint="Another stream has filled it: write to a separate table, or empty this one.",
        )


@dataclass(frozen=True)
class Newer:
    """Leaves out rows that the table has, or has a newer one of: they may have come before, and change nothing."""

    decoder: RowDecoder
    lookup: RowLookup
    rules: Rules
    state: State

    def of(self, chunk: Chunk) -> Chunk:
        """The chunk without them. Raises ClickHouseError."""
        records = chunk.records
        batch = self.decoder.decode(records)
        if batch.key is None or not len(batch):
            return chunk
        mine = to_ints(sequence(batch, records, self.state, self.rules).version)
        found = self.lookup.fetch(batch.key).rows
        version = self.decoder.table.engine.version_column or ""
        stored = dict(zip(_keys(found, self.decoder.keys), to_ints(_words(self.rules, found, version)), strict=True))
        keys = _keys(batch.key, self.decoder.keys)
        keep = np.ones(len(records), dtype=np.bool_)
        for place, key, number in zip(batch.source_index.tolist(), keys, mine, strict=True):
            keep[place] = number > stored.get(key, -1)
        if keep.all():
            return chunk
        shown: list[Any] = []
        for rows in (records.keys, records.values):
            assert isinstance(rows, Rows)
            shown.append(Rows(rows.table.filter(pa.array(keep))))
        left = Records(records.topic, records.partition, records.offsets[keep], records.timestamps[keep], *shown)
        return Chunk(chunk.first, chunk.end, left)


def newer(config: Config, task: RangeTask, decoder: RowDecoder) -> Newer:
    """For a task on real ports. Raises ClickHouseError."""
    policy = config.policy()
    rules = Rules(Target.of(task.table, policy).layout, policy.versions, "stated")
    return Newer(decoder, AnyKeyLookup(client_of(config), task.table), rules, task.state)


def _keys(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def _words(rules: Rules, rows: pa.Table, version: str) -> Words:
    return rules.layout.from_arrow(rows.column(version))
