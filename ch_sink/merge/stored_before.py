"""Append tables: which rows an earlier attempt has stored, where other settings may have given other rows.

A row is found again by its version, which holds the offset of its event, by its sign and its key. Its other values are
those of the earlier attempt; a change is stored once.
"""

import numpy as np
import pyarrow as pa

from ch_sink.merge.key_codes import factorize
from ch_sink.ports import RowLookup

__all__ = ["not_stored"]


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
