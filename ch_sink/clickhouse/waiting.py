"""Traces of key changes in ClickHouse: handed-over values, and records that wait for them.

The tables are those of ``sql/handover.sql`` and ``sql/pending.sql``, each for every stream. A row that is handed over
is stored as an Arrow IPC stream in a String column: all types stay exact, and altering the target does not affect it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys, conform_table, fenced, from_stream, one_batch, to_stream
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.fence import SETTINGS, under
from ch_sink.clickhouse.state_table import HEADERS, StateTable, headers_in, headers_out
from ch_sink.model.change import HandoverId
from ch_sink.ports import AppliedSwap, Fence, HandedOver, PendingRecord
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type

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


_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("epoch", pa.int64()),
        ("commit_high", pa.uint64()),
        ("commit_low", pa.uint64()),
        ("since", pa.float64()),
        ("resolved", pa.uint8()),
    ]
)
_TYPES = {
    "stream": "String",
    "topic_id": "String",
    "partition": "Int32",
    "offset": "Int64",
    "timestamp": "Int64",
    "key": "Nullable(String)",
    "value": "Nullable(String)",
    "headers": "Array(Tuple(name String, value Nullable(String)))",
    "epoch": "Int64",
    "commit_high": "UInt64",
    "commit_low": "UInt64",
    "since": "Float64",
    "resolved": "UInt8",
}
_FENCED = {
    **SETTINGS,
    "async_insert": 0,
    "insert_deduplicate": 0,
    "deduplicate_insert": "disable",
    "deduplicate_insert_select": "disable",
}
_LOW = (1 << 64) - 1
_WAITS, _APPLIED, _SWAPPED = 0, 1, 2
_WHERE = "stream = {stream:String} AND topic_id = {topic_id:String} AND partition = {partition:Int32}"
_OPEN = (
    "SELECT offset, timestamp, key, value, headers, epoch, commit_high, commit_low, since, "
    f"resolved FROM $table FINAL WHERE {_WHERE} AND resolved != {_APPLIED} ORDER BY offset"
)
_RELEASED = (
    f"SELECT offset FROM $table FINAL WHERE {_WHERE} AND resolved != {_WAITS} "
    "AND offset >= {first:Int64} AND offset < {end:Int64} ORDER BY offset"
)


@dataclass(slots=True)
class ClickHousePending:
    """The Pending of one stream.

    The newest entry of an offset counts: a record stored again after it was resolved waits again, because its range
    is repeated; applying it again changes nothing.
    """

    client: Client
    database: str
    table: str
    stream: str

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Store records. A repeat is harmless, so ``token`` is not used. Raises ClickHouseError, LedgerConflict."""
        rows = [
            {
                "stream": self.stream,
                "topic_id": topic_id,
                "partition": partition,
                "offset": r.offset,
                "timestamp": r.timestamp,
                "key": r.key,
                "value": r.value if r.swap is None else _packed(r.swap),
                "headers": headers_in(r.headers),
                "epoch": r.epoch,
                "commit_high": r.commit >> 64,
                "commit_low": r.commit & _LOW,
                "since": r.since,
                "resolved": _WAITS if r.swap is None else _SWAPPED,
            }
            for r in records
        ]
        made = pa.Table.from_pylist(rows, schema=_SCHEMA)
        if fence is None:
            self._stored.insert(made)
        else:
            self._insert_under(fence, made)

    def _insert_under(self, fence: Fence, rows: pa.Table) -> None:
        stored = self._stored
        if not fence.condition:
            fence.check()
            stored.insert(rows)
            return
        query = fenced([(name, _TYPES[name]) for name in _SCHEMA.names], fence.condition)
        with under(fence):
            self.client.insert(
                stored.qualified, rows, settings=_FENCED, query=(rows.column_names, query), query_id=fence.query_id
            )

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        found = self._stored.arrow(_OPEN, self._named(topic_id, partition))
        return [
            PendingRecord(
                r["offset"],
                r["timestamp"],
                r["key"],
                r["value"] if r["resolved"] == _WAITS else None,
                headers_out(r["headers"]),
                r["epoch"],
                r["commit_high"] << 64 | r["commit_low"],
                r["since"],
                None if r["resolved"] == _WAITS else _unpacked(r["value"]),
            )
            for r in found.to_pylist()
        ]

    def places(self) -> dict[tuple[str, int], int]:
        found = self._stored.rows(
            f"SELECT topic_id, partition, countIf(resolved = {_WAITS}) AS n FROM $table FINAL "
            f"WHERE stream = {{stream:String}} AND resolved != {_APPLIED} "
            "GROUP BY topic_id, partition ORDER BY topic_id, partition",
            stream=self.stream,
        )
        return {(str(r["topic_id"]), int(r["partition"])): int(r["n"]) for r in found}

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """Mark records as applied; the next merge removes their bytes. Raises ClickHouseError."""
        if not offsets:
            return
        self._stored.rewrite(
            "SELECT * REPLACE (CAST(NULL, 'Nullable(String)') AS value, toUInt8(1) AS resolved, "
            "toUInt64(toUnixTimestamp64Nano(now64(9))) AS written)",
            f"{_WHERE} AND offset IN (SELECT offset FROM _offsets)",
            self._named(topic_id, partition),
            Keys("_offsets", pa.table({"offset": pa.array(offsets, pa.int64())}), [("offset", "Int64")]),
        )

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        found = self._stored.arrow(_RELEASED, {**self._named(topic_id, partition), "first": first, "end": end})
        return [int(offset) for offset in found.column("offset").to_pylist()]

    def _named(self, topic_id: str, partition: int) -> dict[str, object]:
        return {"stream": self.stream, "topic_id": topic_id, "partition": partition}

    @property
    def _stored(self) -> StateTable:
        return StateTable(self.client, self.database, self.table)


def _packed(swap: AppliedSwap) -> bytes:
    """A swap in the column ``value``."""
    return f"{swap.inner:x} {swap.closed}".encode()


def _unpacked(value: bytes) -> AppliedSwap:
    inner, closed = value.split()
    return AppliedSwap(int(inner, 16), int(closed))
