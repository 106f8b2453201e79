"""Entries of the ledger's table: its columns, entries as rows and rows as entries, and the questions over many."""

from typing import Any

import pyarrow as pa

from ch_sink.ports import PartitionTotals, RangeIntent, RangeResult

__all__ = ["MINE", "PROGRESS", "RESULT", "SCHEMA", "TOTALS", "intent_of", "result_of", "row", "totals_of"]

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("entry", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("batch", pa.uint64()),
        ("written", pa.uint64()),
        ("run_id", pa.string()),
        ("topic", pa.string()),
        ("chunk_offsets", pa.int64()),
        ("chunk_bytes", pa.int64()),
        ("cuts", pa.list_(pa.int64())),
        ("rows", pa.uint64()),
        ("deletes", pa.uint64()),
        ("dead_letters", pa.uint64()),
        ("counts", pa.map_(pa.string(), pa.uint64())),
        ("state", pa.string()),
        ("details", pa.string()),
        ("started", pa.timestamp("ms", tz="UTC")),
        ("finished", pa.timestamp("ms", tz="UTC")),
        ("source_time", pa.timestamp("ms", tz="UTC")),
    ]
)
_TIMES = ", ".join(f"toUnixTimestamp64Milli({c}) AS {c}_ms" for c in ("started", "finished", "source_time"))
RESULT = (
    "topic, topic_id, partition, start_offset, end_offset, rows, deletes, dead_letters, counts, cuts, state, "
    f"run_id, batch, {_TIMES}"
)
MINE = "stream = {stream:String}"

# The end of each unbroken run of results is where the next result starts later than everything before it reached.
PROGRESS = f"""\
SELECT partition, argMin(reached, start_offset) AS next_offset
FROM
(
    SELECT
        partition,
        start_offset,
        max(end_offset) OVER (PARTITION BY partition ORDER BY start_offset, end_offset
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS reached,
        leadInFrame(start_offset, 1, toInt64(9223372036854775807)) OVER (PARTITION BY partition
            ORDER BY start_offset, end_offset ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS following
    FROM $table
    WHERE {MINE} AND entry = 'result' AND topic_id = {{topic_id:String}}
)
WHERE following > reached
GROUP BY partition"""

TOTALS = f"""\
SELECT
    topic_id, partition,
    argMax(topic, written) AS topic,
    max(end_offset) AS next_offset,
    sum(rows) AS rows,
    sum(deletes) AS deletes,
    sum(dead_letters) AS dead_letters,
    sumMap(counts) AS counts,
    argMax(state, written) AS state,
    toUnixTimestamp64Milli(max(finished)) AS finished_ms,
    toUnixTimestamp64Milli(max(source_time)) AS source_time_ms
FROM
(
    SELECT * FROM $table WHERE {MINE} AND entry = 'result'
    ORDER BY topic_id, partition, start_offset, end_offset, written DESC
    LIMIT 1 BY topic_id, partition, start_offset, end_offset
)
GROUP BY topic_id, partition
ORDER BY topic_id, partition"""


def row(
    stream: str, entry: str, r: RangeIntent | RangeResult, *, batch: int, written: int, run_id: str
) -> dict[str, Any]:
    """A range as an entry of this kind; ``written`` gives the entries their order."""
    filled: dict[str, Any] = {
        "stream": stream,
        "entry": entry,
        "topic_id": r.topic_id,
        "partition": r.partition,
        "start_offset": r.start,
        "end_offset": r.end,
        "batch": batch,
        "written": written,
        "run_id": run_id,
        "topic": r.topic,
        "chunk_offsets": 0,
        "chunk_bytes": 0,
        "cuts": [],
        "rows": 0,
        "deletes": 0,
        "dead_letters": 0,
        "counts": [],
        "state": "",
        "details": "",
        "started": 0,
        "finished": 0,
        "source_time": 0,
    }
    if isinstance(r, RangeResult):
        filled.update(
            cuts=list(r.cuts),
            rows=r.rows,
            deletes=r.deletes,
            dead_letters=r.dead_letters,
            counts=list(r.counts.items()),
            state=r.state,
            started=round(r.started * 1000),
            finished=round(r.finished * 1000),
            source_time=r.source_time,
        )
    elif entry == "intent":
        filled.update(chunk_offsets=r.chunk_offsets, chunk_bytes=r.chunk_bytes, details=str(r.attempt))
    return filled


def intent_of(r: dict[str, Any]) -> RangeIntent:
    """The intent that a row tells."""
    return RangeIntent(
        r["topic"],
        r["topic_id"],
        r["partition"],
        r["start_offset"],
        r["end_offset"],
        r["chunk_offsets"],
        r["chunk_bytes"],
        int(r["details"] or 0),
    )


def result_of(r: dict[str, Any]) -> RangeResult:
    """The result that a row of ``RESULT`` tells."""
    return RangeResult(
        r["topic"],
        r["topic_id"],
        r["partition"],
        r["start_offset"],
        r["end_offset"],
        r["rows"],
        r["deletes"],
        r["dead_letters"],
        dict(r["counts"]),
        tuple(r["cuts"]),
        r["state"],
        r["started_ms"] / 1000,
        r["finished_ms"] / 1000,
        r["source_time_ms"],
        r["run_id"],
        r["batch"],
    )


def totals_of(r: dict[str, Any]) -> PartitionTotals:
    """A partition's totals from a row of ``TOTALS``."""
    return PartitionTotals(
        r["topic"],
        r["topic_id"],
        r["partition"],
        r["next_offset"],
        r["rows"],
        r["deletes"],
        r["dead_letters"],
        dict(r["counts"]),
        r["state"],
        r["finished_ms"] / 1000,
        r["source_time_ms"],
    )
