"""Barriers, at which a range ends because the coordinator must act first; defaults for columns that a change lacks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import StreamFailed
from ch_sink.model.change import NO_FLOOR, ChangeBatch, Floor, Op, UnknownColumn
from ch_sink.pipeline.target import Target
from ch_sink.table.evolve import offered
from ch_sink.table.model import TargetTable

log = logging.getLogger("ch_sink")
Mask = npt.NDArray[np.bool_]

__all__ = ["Barrier", "expect_stated", "fill_absent", "new_columns"]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Where a range ends because the coordinator must act before the rest can be planned."""

    kind: Literal["new_columns", "truncate"]
    next_offset: int
    """First offset that is not part of this plan."""
    columns: tuple[UnknownColumn, ...] = ()
    """New columns: what the table lacks. Empty: an earlier attempt ended a chunk here."""
    key: tuple[str, ...] = ()
    """New columns: names of the key's columns, which the current-state view may use."""
    version: int = 0
    """Truncate: version of the truncate event; stored rows below it are deleted."""
    floor: Floor = NO_FLOOR
    """Truncate: its position, below which changes of its source name are dropped from then on."""
    source: str = ""
    """Truncate: its source name."""


def new_columns(batch: ChangeBatch, target: Target, key: Sequence[str]) -> Barrier | None:
    """The barrier at the first event that does not fit the table's columns; None if all fit or may be ignored.

    Raises:
        StreamFailed: the policy is to fail, or the table cannot be altered so that they fit.
    """
    evolve, table = target.policy.changes.evolve, target.table
    _refuse_reserved([c for c in batch.unknown if c.change == "reserved"], table, evolve)
    # A column that only became wider needs no action while its values fit; records with values that do not are bad.
    acted_on = ("add", "null", "widen") if evolve == "add_columns" else ("add", "null")
    concerned = [c for c in batch.unknown if c.change in acted_on]
    if evolve == "ignore" or not concerned:
        return None
    stuck = [c for c in concerned if c.change == "null" and (c.clickhouse_type is None or evolve == "fail")]
    if stuck:
        column = stuck[0]
        raise StreamFailed(
            f"the change event at offset {column.first_offset} comes from a source column {column.name!r} that can be "
            f"null now, but the column of {table.qualified} cannot hold null",
            hint=(
                "; ".join(offered(table, [column])) + ", or set evolve: add_columns"
                if column.clickhouse_type is not None
                else f"recreate the table with a Nullable {column.name!r}, or set evolve: ignore to store its "
                "default instead"
            ),
        )
    if evolve == "fail":
        names = ", ".join(repr(c.name) for c in concerned)
        raise StreamFailed(
            f"the change event at offset {min(c.first_offset for c in concerned)} has columns that {table.qualified} "
            f"lacks: {names}",
            hint="add them to the table, or set evolve: add_columns or evolve: ignore",
        )
    typed = tuple(c for c in concerned if c.clickhouse_type is not None)
    return Barrier("new_columns", min(c.first_offset for c in typed), typed, tuple(key)) if typed else None


def _refuse_reserved(columns: Sequence[UnknownColumn], table: TargetTable, evolve: str) -> None:
    """Raises StreamFailed for source columns that have the name of one of the sink's own, unless they are ignored."""
    if columns and evolve != "ignore":
        column = columns[0]
        raise StreamFailed(
            f"the change event at offset {column.first_offset} has a column {column.name!r}, and the sink writes the "
            f"column {column.name!r} of {table.qualified} itself",
            hint="rename the column at the source or with Kafka Connect's ReplaceField, create the table with "
            f"another name than {column.name!r} for the sink's own column, or set evolve: ignore to leave the "
            "source's values out",
        )
    for column in columns:
        _warn_once(table.qualified, column.name)


@lru_cache(maxsize=1024)
def _warn_once(table: str, column: str) -> None:
    log.warning("%s: the source's column %r is left out; the sink writes that column itself", table, column)


def expect_stated(batch: ChangeBatch, table: TargetTable) -> None:
    """Raises StreamFailed if an event lacks a column that a rollup uses: the source has dropped or renamed it.

    The table has a default there, which is no value of the source's.
    """
    rows = np.isin(batch.op, (Op.CREATE, Op.UPDATE, Op.READ))
    for rollup in table.rollups:
        for name in rollup.used:
            if name in batch.absent and (lacking := np.flatnonzero(batch.absent[name] & rows)).size:
                raise StreamFailed(
                    f"rollup {rollup.choice.name} uses column {name!r} of {table.qualified}, which the change event at "
                    f"offset {int(batch.offset[lacking[0]])} lacks: the source has dropped or renamed it, or had not "
                    "added it yet",
                    hint=f"Take the rollup out of the file, and add it again, without {name!r}, or once the stream is "
                    "past events that are older than the column: it is filled from the table then.",
                )


def fill_absent(batch: ChangeBatch, table: TargetTable) -> None:
    """Fill columns that a change event lacks with the column's default; an explicit null stays null.

    The source does the same: rows that exist when a column is added get its default, without an event.
    """
    for name, value in table.defaults:
        if name in batch.absent:
            batch.after = _filled(batch.after, name, batch.absent[name], value)
        if batch.before is not None and name in batch.absent_before:
            batch.before = _filled(batch.before, name, batch.absent_before[name], value)


def _filled(rows: pa.Table, name: str, mask: Mask, value: pa.Scalar) -> pa.Table:
    at = rows.schema.get_field_index(name)
    kind = rows.schema.field(at)
    column = pc.if_else(pa.array(mask), value.cast(kind.type), rows.column(at))
    return rows.set_column(at, kind, column)
