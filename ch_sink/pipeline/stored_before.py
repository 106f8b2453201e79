"""A chunk that gives other inserts than its first attempt: what of it is not stored yet.

The first attempt had other settings, another table or another version of the sink, or has stored a part of the chunk.
Collapsing tables are reconciled anyway. In all others the same offsets are not stored twice, and the tokens of the
first attempt say nothing about rows that differ.

A row is found again by its version, which holds the offset of its event, by its sign and its key. In an append table
its other values are those of the earlier attempt; a change is stored once. In a table with versions a row with other
values replaces the stored one; a delete has no values but those that place it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge.key_codes import factorize
from ch_sink.pipeline.planned import Plan
from ch_sink.pipeline.target import Target
from ch_sink.ports import Insert, RowLookup

__all__ = ["without_repeated", "without_stored"]


def without_stored(made: Plan, target: Target, lookup: RowLookup | None, changed: str, *, alone: bool) -> Plan:
    """The plan without the rows that the earlier attempt has stored.

    Args:
        changed: how the earlier attempt differs; ``unknown`` for a version that did not record it, whose tokens are
            the same.
        alone: the topic has one partition only.

    Raises:
        StreamFailed: rows of the table cannot be told apart.
    """
    if not target.exclusive or target.collapsing or not made.inserts:
        return made
    if not target.appends:
        # The row inserted last wins, and everything behind this chunk is inserted again, too.
        return replace(made, reconciles=True)
    identity = _identity(made.inserts[0], target, made.state.profile.key_columns, alone=alone)
    if identity is None or lookup is None:
        if changed == "unknown":
            return made
        raise StreamFailed(
            f"a batch of {target.table.qualified} was begun with other settings, another table or another version of "
            "ch_sink, and its rows cannot be found again by version and key",
            hint="Run the job with the settings and the version that began the batch until it has ended; then change "
            "them.",
        )
    return replace(made, inserts=[_rest(insert, identity, lookup) for insert in made.inserts])


_ASKED = ("superseded", "truncated", "looked_up", "handed_over", "filled")
"""Counts of plans that depend on more than the chunk's records."""


def without_repeated(
    made: Plan, target: Target, lookup: RowLookup | None, *, changed: bool = False, released: bool = False
) -> Plan:
    """The plan of a chunk that is applied again to a table with versions, without the rows that are stored as they are.

    A lookup finds what the earlier attempt has stored of the chunk, so that changes count as outdated that were in its
    inserts, and deleted rows have other values. Changes that wait since then need no lookup any more. Changes from
    below a truncate that the earlier attempt had not met yet are outdated, too. The rest of those inserts would be
    stored under another token.

    Args:
        changed: the earlier attempt may have made other inserts anyway.
        released: changes of the chunk have waited and been applied since.
    """
    version = target.system.version
    asked = changed or released or made.pending or any(made.counts[name] for name in _ASKED)
    if target.exclusive or version is None or lookup is None or not asked:
        return made
    key = target.stored_key(made.state.profile.key_columns)
    places = tuple(target.table.deciding_columns(key))
    inserts = []
    for insert in made.inserts:
        if not {version, *key} <= set(insert.rows.column_names):
            return made
        rows = _not_stored_so(insert.rows, (version, *key), lookup, deleted=target.deleted, places=places)
        # Under other settings, the same block may have been stored before one that has to be replaced by it again.
        whole = not changed and rows.num_rows == insert.rows.num_rows
        inserts.append(insert if whole else replace(insert, rows=rows, partial=True))
    return replace(made, inserts=inserts)


def _identity(insert: Insert, target: Target, key: tuple[str, ...], *, alone: bool) -> tuple[str, ...] | None:
    """The columns that identify a change; None if there are none. Two partitions may have the same offsets.

    So may two topics that share the table: the added columns tell them apart.
    """
    have, version = set(insert.rows.column_names), target.system.version
    policy = target.policy.columns
    own, added = tuple(map(policy.target, key)), target.table.added_key(policy)
    told_apart = alone or (bool(own) and set(own) <= have)
    if version is None or version not in have or not told_apart:
        return None
    return tuple(name for name in (version, "_sign", *added, *own) if name in have)


def _rest(insert: Insert, identity: tuple[str, ...], lookup: RowLookup) -> Insert:
    rows = _not_stored(insert.rows, identity, lookup)
    return insert if rows.num_rows == insert.rows.num_rows else replace(insert, rows=rows, partial=True)


def _not_stored(rows: pa.Table, identity: tuple[str, ...], lookup: RowLookup) -> pa.Table:
    """The rows that the table lacks. ``identity``: columns that identify a change. Raises ClickHouseError."""
    mine = rows.select(list(identity))
    found = lookup.fetch(mine).rows
    if not found.num_rows:
        return rows
    stored = found.select(list(identity)).cast(mine.schema)
    codes = factorize(pa.concat_tables([mine, stored])).codes
    n = rows.num_rows
    return rows.filter(pa.array(~np.isin(codes[:n], codes[n:])))


def _not_stored_so(
    rows: pa.Table,
    identity: tuple[str, ...],
    lookup: RowLookup,
    *,
    deleted: tuple[str, int] | None = None,
    places: tuple[str, ...] = (),
) -> pa.Table:
    """The rows that the table lacks, or holds with other values. Raises ClickHouseError.

    Args:
        deleted: the column that marks a deleted row, and its value there. The other values of a deleted row are what
            an attempt knew of the row, and a repeated attempt may know less.
        places: columns outside the identity that decide where the table keeps a row.
    """
    names = rows.column_names
    found = lookup.fetch(rows.select(list(identity))).rows
    mark, gone = deleted or ("", None)
    placed = sorted({mark, *identity, *places} & set(names))

    def comparable(row: dict[str, Any]) -> str:
        compared = placed if gone is not None and row.get(mark) == gone else names
        return repr([row[name] for name in compared])

    stored = {comparable(row) for row in found.select(names).cast(rows.schema).to_pylist()}
    return rows.filter(pa.array([comparable(row) not in stored for row in rows.to_pylist()], pa.bool_()))
