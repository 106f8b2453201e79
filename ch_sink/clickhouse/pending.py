"""Records that wait for the values of a row that changed its key, in a ClickHouse table (``sql/pending.sql``)."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ch_sink.clickhouse.client import Client, Keys
from ch_sink.clickhouse.fenced_insert import SETTINGS, SUPERSEDED, fenced
from ch_sink.clickhouse.state_table import HEADERS, StateTable, headers_in, headers_out
from ch_sink.errors import ClickHouseError
from ch_sink.ports import AppliedSwap, Fence, PendingRecord

__all__ = ["ClickHousePending"]

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
        try:
            self.client.insert(stored.qualified, rows, settings=_FENCED, query=query, query_id=fence.query_id)
        except ClickHouseError as error:
            if error.code in SUPERSEDED:
                fence.check()
            raise

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
