"""Values of rows that change their key, in a ClickHouse table (``sql/handover.sql``).

One table serves every stream: a row is stored as an Arrow IPC stream in a String column. All types stay exact,
and altering the target does not affect stored rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.clickhouse.arrow_io import conform_table, from_stream, one_batch, to_stream
from ch_sink.clickhouse.client import Client, Keys
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.model.change import HandoverId
from ch_sink.ports import HandedOver
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type

__all__ = ["ClickHouseHandover", "conform_rows"]

_ID = [
    ("source", "String", pa.string()),
    ("commit_high", "UInt64", pa.uint64()),
    ("commit_low", "UInt64", pa.uint64()),
    ("inner_high", "UInt64", pa.uint64()),
    ("inner_low", "UInt64", pa.uint64()),
]
_NAMES = ", ".join(name for name, _, _ in _ID)
_GET = (
    f"SELECT {_NAMES}, known, row FROM $table FINAL "
    f"WHERE stream = {{stream:String}} AND ({_NAMES}) IN (SELECT {_NAMES} FROM _ids)"
)


class ClickHouseHandover:
    """The Handover of one stream into one target table. Raises ClickHouseError."""

    def __init__(self, client: Client, database: str, table: str, stream: str, target: TargetTable) -> None:
        self._table = StateTable(client, database, table)
        self._stream = stream
        self._types = {c.name: arrow_type(c.type) for c in target.source_columns}

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        if not ids:
            return HandedOver({}, _empty(self._types))
        found = self._table.arrow(_GET, {"stream": self._stream}, Keys("_ids", _columns(ids), [i[:2] for i in _ID]))
        places: dict[HandoverId, int] = {}
        rows: list[pa.Table] = []
        for entry in found.to_pylist():
            source, *numbers = (entry[name] for name, _, _ in _ID)
            high, low, inner_high, inner_low = numbers
            identity = HandoverId(source.decode(), high, low, inner_high, inner_low)
            if entry["known"]:
                places[identity] = len(rows)
                rows.append(conform_rows(from_stream(entry["row"]), self._types))
            else:
                places[identity] = -1
        return HandedOver(places, pa.concat_tables(rows) if rows else _empty(self._types))

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        """Store entries; an existing entry stays. ``token`` is not used: the engine keeps the first."""
        if not ids:
            return
        entries = _columns(ids)
        packed = [bytes(to_stream(one_batch(rows.slice(i, 1)))) if known[i] else b"" for i in range(len(ids))]
        entries = entries.append_column("stream", pa.array([self._stream] * len(ids), pa.string()))
        entries = entries.append_column("known", pa.array(known.astype(np.uint8)))
        entries = entries.append_column("row", pa.array(packed, pa.binary()))
        self._table.insert(entries)


def conform_rows(rows: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Rows with exactly these columns: columns added since are null, dropped ones are left out."""
    for name, kind in types.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
    return conform_table(rows.select(list(types)), types)


def _columns(ids: Sequence[HandoverId]) -> pa.Table:
    return pa.table({name: pa.array([getattr(i, name) for i in ids], kind) for name, _, kind in _ID})


def _empty(types: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array([], type=kind) for name, kind in types.items()})
