"""Dead letters in a ClickHouse table (``sql/dead_letters.sql``)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.state_table import HEADERS, StateTable, headers_in, headers_out
from ch_sink.ports import DeadLetter, StoredLetter

_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("kind", pa.string()),
        ("column", pa.string()),
        ("reason", pa.string()),
    ]
)
_MINE = "stream = {stream:String} AND topic_id = {topic_id:String}"
_LIST = (
    "SELECT topic, partition, offset, timestamp, $record, kind, column, reason, "
    "toUnixTimestamp64Milli(time) AS at, toUnixTimestamp64Milli(retried) AS settled, outcome "
    "FROM $table FINAL WHERE "
)
_RECORD = "key, value, headers"
_NO_RECORD = (
    "CAST(NULL AS Nullable(String)) AS key, CAST(NULL AS Nullable(String)) AS value, "
    "CAST([] AS Array(Tuple(name String, value Nullable(String)))) AS headers"
)


@dataclass(slots=True)
class ClickHouseDeadLetters:
    """The DeadLetters of one stream and topic. Each offset is stored once; its newest entry counts."""

    client: Client
    database: str
    table: str
    stream: str
    topic_id: str

    def put(self, records: Sequence[DeadLetter], token: str) -> None:
        """Store dead letters. A repeat is harmless, so ``token`` is not used. Raises ClickHouseError."""
        mine = {"stream": self.stream, "topic_id": self.topic_id}
        rows = [{**asdict(letter), **mine, "headers": headers_in(letter.headers)} for letter in records]
        self._stored.insert(pa.Table.from_pylist(rows, schema=_SCHEMA))

    def list(self, limit: int = 100, *, retried: bool = False, whole: bool = True) -> Sequence[StoredLetter]:
        """Dead letters by partition and offset; ``retried``: include those settled since. Raises ClickHouseError."""
        where = _MINE if retried else f"{_MINE} AND retried IS NULL"
        return self._letters(f"{where} ORDER BY partition, offset LIMIT {{limit:UInt64}}", whole=whole, limit=limit)

    def newest(self, limit: int, kind: str | None = None, *, whole: bool = True) -> Sequence[StoredLetter]:
        """Dead letters of the stream that are not settled, of all its topics, the newest first. Raises ClickHouseError.

        ``whole``: with their records, which are read of the chosen letters only; else without key, value and headers.
        """
        mine = (
            f"stream = {{stream:String}} AND retried IS NULL{' AND kind = {kind:String}' if kind is not None else ''}"
        )
        order = "ORDER BY time DESC, offset DESC, partition LIMIT {limit:UInt64}"
        place = "topic_id, partition, offset"
        chosen = f"({place}) IN (SELECT {place} FROM $table FINAL WHERE {mine} {order})"
        return self._letters(f"{mine} AND {chosen} {order}", whole=whole, limit=limit, kind=kind)

    def _letters(self, where: str, *, whole: bool = True, **named: object) -> Sequence[StoredLetter]:
        listed = _LIST.replace("$record", _RECORD if whole else _NO_RECORD)
        given = {name: setting for name, setting in named.items() if setting is not None}
        found = self._stored.arrow(f"{listed}{where}", {**self._named, **given})
        return [
            StoredLetter(
                DeadLetter(
                    _text(r["topic"]),
                    r["partition"],
                    r["offset"],
                    r["timestamp"],
                    r["key"],
                    r["value"],
                    headers_out(r["headers"]),
                    _text(r["kind"]),
                    _text(r["column"]) if r["column"] is not None else None,
                    _text(r["reason"]),
                ),
                r["at"] / 1000,
                None if r["settled"] is None else r["settled"] / 1000,
                _text(r["outcome"]),
            )
            for r in found.to_pylist()
        ]

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """Offsets in [first, end) of the records that have not been applied since. Raises ClickHouseError."""
        found = self._stored.rows(
            f"SELECT offset FROM $table FINAL WHERE {_MINE} AND partition = {{partition:Int32}} "
            "AND offset >= {first:Int64} AND offset < {end:Int64} AND retried IS NULL ORDER BY offset",
            **self._named,
            partition=partition,
            first=first,
            end=end,
        )
        return [int(r["offset"]) for r in found]

    def places(self) -> set[tuple[int, int]]:
        """Partition and offset of all dead letters but those applied since. Raises ClickHouseError."""
        found = self._stored.rows(
            f"SELECT partition, offset FROM $table FINAL WHERE {_MINE} AND outcome != 'applied'", **self._named
        )
        return {(int(r["partition"]), int(r["offset"])) for r in found}

    def count(self) -> dict[str, int]:
        """Number of the stream's open dead letters, of all its topics, by kind. Raises ClickHouseError."""
        found = self._stored.rows(
            "SELECT kind, count() AS n FROM $table FINAL WHERE stream = {stream:String} AND retried IS NULL "
            "GROUP BY kind ORDER BY kind",
            stream=self.stream,
        )
        return {str(r["kind"]): int(r["n"]) for r in found}

    def settle(self, places: Sequence[tuple[int, int]], outcome: str) -> None:
        """Note what became of dead letters, by (partition, offset). They stay in the table. Raises ClickHouseError."""
        if not places:
            return
        asked = pa.table(
            {
                "partition": pa.array([p for p, _ in places], pa.int32()),
                "offset": pa.array([o for _, o in places], pa.int64()),
            }
        )
        self._stored.rewrite(
            "SELECT * REPLACE (now64(3) AS retried, {outcome:String} AS outcome, "
            "toUInt64(toUnixTimestamp64Nano(now64(9))) AS written)",
            f"{_MINE} AND (partition, offset) IN (SELECT partition, offset FROM _places)",
            {**self._named, "outcome": outcome},
            Keys("_places", asked, [("partition", "Int32"), ("offset", "Int64")]),
        )

    def topic_ids(self) -> Sequence[str]:
        """Ids of the topics of which the stream has dead letters that are not settled. Raises ClickHouseError."""
        found = self._stored.rows(
            "SELECT DISTINCT topic_id FROM $table FINAL WHERE stream = {stream:String} AND retried IS NULL "
            "ORDER BY topic_id",
            stream=self.stream,
        )
        return [str(r["topic_id"]) for r in found]

    @property
    def _named(self) -> dict[str, object]:
        return {"stream": self.stream, "topic_id": self.topic_id}

    @property
    def _stored(self) -> StateTable:
        return StateTable(self.client, self.database, self.table)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
