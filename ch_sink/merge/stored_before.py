"""Which rows an earlier attempt has stored, where this one gives other inserts.

A row is found again by its version, which holds the offset of its event, by its sign and its key. In an append table
its other values are those of the earlier attempt; a change is stored once. In a table with versions a row with other
values replaces the stored one; a delete has no values but those that place it.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.merge.key_codes import factorize
from ch_sink.ports import RowLookup

__all__ = ["not_stored", "not_stored_so"]


def not_stored(rows: pa.Table, identity: tuple[str, ...], lookup: RowLookup) -> pa.Table:
    """The rows that the table lacks. ``identity``: columns that identify a change. Raises ClickHouseError."""
    mine = rows.select(list(identity))
    found = lookup.fetch(mine).rows
    if not found.num_rows:
        return rows
    stored = found.select(list(identity)).cast(mine.schema)
    codes = factorize(pa.concat_tables([mine, stored])).codes
    n = rows.num_rows
    return rows.filter(pa.array(~np.isin(codes[:n], codes[n:])))


def not_stored_so(
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
