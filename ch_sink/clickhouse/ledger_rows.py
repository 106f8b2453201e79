"""Entries of the ledger as rows of its table, and rows as entries."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from ch_sink.model.change import BackwardStep
from ch_sink.model.counts import Counts
from ch_sink.ports import (
    Claim,
    Execution,
    Fact,
    FinishedRange,
    PartitionTotals,
    RangeIntent,
    RangeProgress,
    RangeSummary,
    ReleaseGroup,
)

Entry = Claim | RangeIntent | Execution | RangeProgress | ReleaseGroup | FinishedRange | RangeSummary | Fact

F = TypeVar("F", bound=Fact)

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("entry", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("batch", pa.uint64()),
        ("offset", pa.int64()),
        ("claim_number", pa.uint64()),
        ("fact", pa.string()),
        ("written", pa.uint64()),
        ("run_id", pa.string()),
        ("topic", pa.string()),
        ("chunk_offsets", pa.int64()),
        ("chunk_bytes", pa.int64()),
        ("attempt", pa.uint32()),
        ("offsets", pa.list_(pa.int64())),
        ("rows", pa.uint64()),
        ("deletes", pa.uint64()),
        ("dead_letters", pa.uint64()),
        ("counts", pa.map_(pa.string(), pa.uint64())),
        ("state", pa.string()),
        ("started", pa.timestamp("ms", tz="UTC")),
        ("finished", pa.timestamp("ms", tz="UTC")),
        ("source_time", pa.timestamp("ms", tz="UTC")),
    ]
)

_EMPTY: dict[str, Any] = {
    f.name: [] if pa.types.is_nested(f.type) else "" if pa.types.is_string(f.type) else 0 for f in SCHEMA
}
_COLUMN_OF = {
    "topic_id": "topic_id",
    "partition": "partition",
    "offset": "offset",
    "number": "claim_number",
    "run_id": "run_id",
}
"""Fields of claims and facts that have a column; all others are in ``fact``."""


def row(
    stream: str, entry: Entry, *, claim_number: int = 0, run_id: str = "", batch: int = 0, written: int
) -> dict[str, Any]:
    """An entry as a row. ``claim_number`` and ``run_id`` are those of the claim under which it is written."""
    filled = {
        **_EMPTY,
        "stream": stream,
        "entry": entry.kind,
        "batch": batch,
        "claim_number": claim_number,
        "run_id": run_id,
        "written": written,
    }
    match entry:
        case RangeIntent() | FinishedRange() | RangeProgress() | RangeSummary():
            filled |= _range(entry)
        case ReleaseGroup():
            # No column of the sorting key holds the offsets: a group replaces the one before it.
            filled |= {"topic_id": entry.topic_id, "partition": entry.partition, "offsets": list(entry.offsets)}
            filled["counts"] = [("given_up", int(entry.given_up))]
        case Execution():
            # Whatever distinguishes executions is outside the sorting key: the engine keeps the row of the newest.
            place = {"topic_id": entry.topic_id, "partition": entry.partition}
            filled |= {**place, "run_id": entry.id, "state": entry.work, "counts": [("batch", entry.batch)]}
        case _:
            fields = msgspec.to_builtins(entry)
            filled |= {column: fields.pop(name) for name, column in _COLUMN_OF.items() if name in fields}
            filled["fact"] = json.dumps(fields)
    return filled


def _range(entry: RangeIntent | FinishedRange | RangeProgress | RangeSummary) -> dict[str, Any]:
    filled = {
        "topic_id": entry.topic_id,
        "partition": entry.partition,
        "start_offset": entry.start,
        "end_offset": entry.end,
    }
    match entry:
        case RangeIntent():
            filled |= {
                "topic": entry.topic,
                "chunk_offsets": entry.chunk_offsets,
                "chunk_bytes": entry.chunk_bytes,
                "attempt": entry.attempt,
                "fact": json.dumps({"fingerprint": entry.fingerprint}) if entry.fingerprint else "",
            }
        case FinishedRange() | RangeSummary():
            filled |= {
                "topic": entry.topic,
                "rows": entry.counts.rows,
                "deletes": entry.counts.deletes,
                "dead_letters": entry.counts.dead_letters,
                "counts": [(kind, n) for kind, n in entry.counts.kinds.items() if n > 0],
                "state": entry.state,
                "started": round(entry.started * 1000),
                "finished": round(entry.finished * 1000),
                "source_time": entry.counts.source_time,
            }
            fact: dict[str, Any] = {"steps": msgspec.to_builtins(entry.steps)} if entry.steps else {}
            if isinstance(entry, RangeSummary):
                filled["attempt"] = entry.batches
            elif entry.counts.top:
                fact["top"] = str(entry.counts.top)
            filled["fact"] = json.dumps(fact) if fact else ""
        case RangeProgress():
            filled |= {"state": entry.state, "claim_number": entry.claim, "batch": entry.batch or entry.start}
    return filled


def fingerprint_of(fact: str) -> str:
    """The fingerprint in the column ``fact`` of an intent."""
    return str(json.loads(fact).get("fingerprint", "")) if fact else ""


def steps_of(fact: str) -> tuple[BackwardStep, ...]:
    """The steps in the column ``fact`` of a result or a summary."""
    return msgspec.convert(json.loads(fact).get("steps", ()), tuple[BackwardStep, ...]) if fact else ()


def claim_of(r: Mapping[str, Any]) -> Claim:
    """The claim of a row with ``claim_number``, ``run_id`` and ``fact``."""
    return msgspec.convert({**json.loads(r["fact"]), "number": r["claim_number"], "run_id": r["run_id"]}, Claim)


def fact_of(r: Mapping[str, Any], kind: type[F]) -> F:
    """The fact of a row with ``topic_id``, ``partition``, ``offset`` and ``fact``."""
    columns = {name: r[column] for name, column in _COLUMN_OF.items() if column in r}
    return msgspec.convert({**json.loads(r["fact"]), **columns}, kind)


def intent_of(r: Mapping[str, Any]) -> RangeIntent:
    """The intent of a row."""
    return RangeIntent(
        topic=r["topic"],
        topic_id=r["topic_id"],
        partition=r["partition"],
        start=r["start_offset"],
        end=r["end_offset"],
        chunk_offsets=r["chunk_offsets"],
        chunk_bytes=r["chunk_bytes"],
        attempt=r["attempt"],
    )


def result_of(r: Mapping[str, Any]) -> FinishedRange:
    """The result of a row, with its times in milliseconds."""
    top = int(json.loads(r["fact"]).get("top", 0)) if r["fact"] else 0
    return FinishedRange(**_figures_of(r, top), run_id=r["run_id"], batch=r["batch"])


def summary_of(r: Mapping[str, Any]) -> RangeSummary:
    """The summary of a row, with its times in milliseconds."""
    return RangeSummary(**_figures_of(r), batches=r["batches"])


def _figures_of(r: Mapping[str, Any], top: int = 0) -> dict[str, Any]:
    """The figures that results and summaries have in common."""
    return {name: r[name] for name in ("topic", "topic_id", "partition", "state")} | {
        "start": r["start_offset"],
        "end": r["end_offset"],
        "counts": _counts_of(r, top),
        "started": r["started_ms"] / 1000,
        "finished": r["finished_ms"] / 1000,
        "steps": steps_of(r["fact"]),
    }


def totals_of(r: Mapping[str, Any], state: str) -> PartitionTotals:
    """A partition's totals from a row of `ledger.TOTALS`, and its last state."""
    return PartitionTotals(
        topic=r["topic"],
        topic_id=r["topic_id"],
        partition=r["partition"],
        next_offset=r["next_offset"],
        counts=_counts_of(r),
        state=state,
        finished=r["finished_ms"] / 1000,
    )


def _counts_of(r: Mapping[str, Any], top: int = 0) -> Counts:
    return Counts(0, r["rows"], r["dead_letters"], r["source_time_ms"], top, Counter(dict(r["counts"])))
