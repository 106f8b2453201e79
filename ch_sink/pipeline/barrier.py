"""Barriers, at which a range ends because the coordinator must act first: new columns, and truncates of the source."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import StreamFailed
from ch_sink.model.change import NO_FLOOR, ChangeBatch, Floor, Op, UnknownColumn
from ch_sink.model.counts import capitalized
from ch_sink.order import Sequenced, State
from ch_sink.order.version import POSITION_SHIFT, to_int
from ch_sink.pipeline.target import Target
from ch_sink.table.evolve import ANEW_ALONE, RETYPED, adding_by_hand, alter, offered
from ch_sink.table.model import TargetTable
from ch_sink.types.sql import literal, quote

log = logging.getLogger("ch_sink")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Barrier:
    """The end of a range before which the coordinator must act, so that the rest can be planned."""

    kind: Literal["new_columns", "truncate", "key_form"]
    next_offset: int
    """First offset that is not part of this plan. New columns: that of the chunk, which is planned once they exist."""
    columns: tuple[UnknownColumn, ...] = ()
    """New columns: what the table lacks."""
    key: tuple[str, ...] = ()
    """New columns: names of the key's columns, which the current-state view may use."""
    version: int = 0
    """Truncate: version of the truncate event; stored rows below it are deleted."""
    floor: Floor = NO_FLOOR
    """Truncate: its position, below which changes of its source name are dropped from then on."""
    source: str = ""
    """Truncate: its source name."""
    key_form: tuple[str, str] = ("", "")
    """The new form of keys from the next record on: its schema's name, and the form."""
    timestamp: int = 0
    """The time of that record, in milliseconds since 1970."""


def new_columns(batch: ChangeBatch, target: Target, key: Sequence[str], first: int) -> Barrier | None:
    """The barrier before a batch of which an event does not fit the table's columns; None if all fit or may be ignored.

    Args:
        first: offset of the batch's first record.

    Raises:
        StreamFailed: the policy is to fail, or the table cannot be altered so that they fit.
    """
    evolve, table = target.policy.changes.evolve, target.table
    _refuse_reserved([c for c in batch.unknown if c.change == "reserved"], table, evolve)
    alone = table.finds_by_all(key)
    _refuse_retyped(batch.unknown, table, evolve, alone=alone)
    # A column that only became wider needs no action while its values fit; records with values that do not are bad.
    acted_on = ("add", "null", "widen", "refine") if evolve == "add_columns" else ("add", "null")
    concerned = [c for c in batch.unknown if c.change in acted_on]
    if alone:
        _refuse_narrowed(batch.unknown, table)
    if evolve != "fail" and alone:
        _refuse_unfilled(concerned, table, evolve)
    for column in concerned if evolve == "ignore" else ():
        if column.change == "add":
            _warn_once(table.qualified, column.name, "to store it later, fill the table again with ch_sink resync")
    if evolve == "ignore" or not concerned:
        return None
    stuck = [c for c in concerned if c.change == "null" and (c.clickhouse_type is None or evolve == "fail")]
    if stuck:
        column = stuck[0]
        raise StreamFailed(
            f"the change event at offset {column.first_offset} comes from a source column {column.name!r} that can be "
            f"null now, but the column of {table.qualified} cannot hold null",
            hint=(
                _altered(table, column, alone=alone)
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
            hint="Add them to the table, or set evolve: add_columns or evolve: ignore.",
        )
    typed = tuple(c for c in concerned if c.clickhouse_type is not None)
    return Barrier("new_columns", first, typed, tuple(key)) if typed else None


def _refuse_unfilled(columns: Iterable[UnknownColumn], table: TargetTable, evolve: str) -> None:
    """Raises StreamFailed for a new column of a table without a key, unless stored rows get its values by the ALTER.

    Such rows are found by all of their values: later changes of them would state the source's value, and miss them. A
    column that is ignored would come with the same rows, once the table has it.
    """
    for column in columns:
        known = column.filled and not column.doubtful
        if column.change != "add" or column.clickhouse_type is None or (known and evolve == "add_columns"):
            continue
        by_hand = adding_by_hand(table, {column.name: column.clickhouse_type})
        raise StreamFailed(
            f"the change event at offset {column.first_offset} has a new column {column.name!r}. Rows of "
            f"{table.qualified} have no key and are found by all of their values: what stored rows have in it at the "
            "source is not known",
            hint=f"Add it with the value that the source gave to its rows ({'; '.join(by_hand)}); if that differs from "
            "row to row, load a new snapshot into a new table; or leave the column out by columns.exclude.",
        )


def _refuse_narrowed(columns: Iterable[UnknownColumn], table: TargetTable) -> None:
    """Raises StreamFailed for a column of a table without a key whose type became smaller at the source."""
    for column in columns:
        if column.narrow:
            now = column.comment.partition("debezium: ")[2].partition(" {")[0]
            raise StreamFailed(
                f"the change event at offset {column.first_offset} has column {column.name!r} as {now}, which is "
                f"smaller than before: the source may have changed its rows without an event, and those of "
                f"{table.qualified} have no key and are found by all of their values",
                hint=f"{capitalized(ANEW_ALONE)}.",
            )


def _altered(table: TargetTable, column: UnknownColumn, *, alone: bool) -> str:
    """The ALTER after which the column holds what the source sends now.

    ``alone``: rows have no key, and an ALTER by hand may give stored rows other values than the source's.
    """
    return "set evolve: add_columns" if alone else "; ".join(offered(table, [column])) + ", or set evolve: add_columns"


def _refuse_retyped(columns: Iterable[UnknownColumn], table: TargetTable, evolve: str, *, alone: bool) -> None:
    """Raises StreamFailed for a column that would store another value than the source's, as the type changed."""
    for found in columns:
        column = table.column(found.name)
        if column is None or not found.retyped or (found.change == "refine" and evolve == "add_columns"):
            continue
        was = (column.stated.to_note() if column.stated is not None else "unknown").partition(" {")[0]
        now = found.comment.partition("debezium: ")[2]
        state = f"COMMENT COLUMN {quote(found.name)} {literal(found.comment)}"
        anew = ANEW_ALONE if alone else f"{RETYPED}, which makes the column for that type"
        raise StreamFailed(
            f"the change event at offset {found.first_offset} has column {found.name!r} as {now.partition(' {')[0]}, "
            f"which was {was}: {column.type} of {table.qualified} does not hold these values as they are",
            hint=_altered(table, found, alone=alone)
            if found.change == "refine"
            else f"{anew}; or change the column and its values by hand, to String for any values, and state the "
            "present type: " + "; ".join(alter(table, [state])),
        )


def _refuse_reserved(columns: Sequence[UnknownColumn], table: TargetTable, evolve: str) -> None:
    """Raises StreamFailed for source columns that have the name of one of the sink's own, unless they are ignored."""
    if columns and evolve != "ignore":
        column = columns[0]
        raise StreamFailed(
            f"the change event at offset {column.first_offset} has a column {column.name!r}, and the sink writes the "
            f"column {column.name!r} of {table.qualified} itself",
            hint="Rename the column at the source or with Kafka Connect's ReplaceField, create the table with "
            f"another name than {column.name!r} for the sink's own column, or set evolve: ignore to leave the "
            "source's values out.",
        )
    for column in columns:
        _warn_once(table.qualified, column.name, "the sink writes that column itself")


@lru_cache(maxsize=1024)
def _warn_once(table: str, column: str, why: str) -> None:
    log.warning("%s: the source's column %r is left out; %s", table, column, why)


def expect_stated(batch: ChangeBatch, table: TargetTable) -> None:
    """Raises StreamFailed if an event lacks a column that a rollup uses: the source has dropped or renamed it.

    The table has a default there, not a value of the source.
    """
    rows = np.isin(batch.op, (Op.CREATE, Op.UPDATE, Op.READ))
    for rollup in table.rollups:
        for name in rollup.used:
            if name in batch.absent and (lacking := np.flatnonzero(batch.absent[name] & rows)).size:
                raise StreamFailed(
                    f"rollup {rollup.choice.name} uses column {name!r} of {table.qualified}, which the change event at "
                    f"offset {int(batch.offset[lacking[0]])} lacks: the source has dropped or renamed it, or had not "
                    "added it yet",
                    hint=f"Remove the rollup from the file, and add it again, without {name!r}, or once the stream is "
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


def refuse_or_ignore(batch: ChangeBatch, order: Sequenced, target: Target) -> None:
    """Drop the truncates from the order.

    Raises:
        StreamFailed: a truncate is not a re-delivery, and the policy is to fail.
    """
    truncates = batch.op == Op.TRUNCATE
    found = np.flatnonzero(truncates & order.keep)
    order.keep[truncates] = False
    if not len(found):
        return
    if target.policy.changes.truncate == "fail":
        raise StreamFailed(
            f"the source table was truncated (event at offset {int(batch.offset[found[0]])})",
            hint="Set truncate: apply to delete the rows here too, or truncate: ignore to keep them.",
        )
    order.skipped["truncates_ignored"] += len(found)


def truncate_barrier(batch: ChangeBatch, order: Sequenced, event: int, target: Target, state: State) -> Barrier:
    """The barrier at a truncate; ``order`` reaches at least to it.

    Raises:
        StreamFailed: versions do not order the truncate against the other partitions, or the topic has several
            source names or source tables.
    """
    source = batch.source_name[int(batch.source_code[event])]
    expect_one_table(source, order.state, int(batch.offset[event]))
    if not state.alone and order.state.strategy != "source_position":
        raise StreamFailed(
            f"the truncate at offset {int(batch.offset[event])} cannot be applied: the topic "
            f"{'may have' if state.uncounted else 'has'} several partitions, and versions by {order.state.strategy} do "
            "not order them against each other",
            hint="Set truncate: ignore, or use a topic with one partition"
            + (", and name the brokers (kafka.bootstrap.servers)." if state.uncounted else "."),
        )
    inner = (int(batch.inner[event, 0]) << 64) | int(batch.inner[event, 1])
    version = to_int(order.version, event)
    if not state.alone and target.layout.kind == "wide":
        # Offsets of different partitions do not compare. Rows that the truncate's own transaction wrote after it
        # (TRUNCATE, then INSERT) must stay, whichever partition they are on.
        version = version >> POSITION_SHIFT << POSITION_SHIFT
    return Barrier(
        "truncate",
        int(batch.offset[event]) + 1,
        version=version,
        floor=Floor(int(order.epoch[event]), to_int(order.commit, event), inner),
        source=source,
    )


def expect_one_table(source: str, met: State, offset: int) -> None:
    """Raises StreamFailed if the stream has met other source names than the truncated one, or several source tables."""
    others = sorted(set(met.names) - {source}) or (met.tables[1:] and met.tables)
    if others:
        raise StreamFailed(
            f"the truncate of source {source!r} at offset {offset} cannot be applied: the table also has rows of "
            f"{' and '.join(map(repr, others[:5]))}, and rows do not say whose they are",
            hint="Set truncate: ignore and delete the rows of the truncated table by hand, or give each source table "
            "a topic and a table of its own.",
        )
