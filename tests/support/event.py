"""Change events of a table with two columns, in a few words."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from ch_sink.model.change import Headers, Records, Skipped

SOURCE = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.1", "pos": 1, "row": 0}


def event(op: str = "c", after: Any = None, before: Any = None, **source: Any) -> bytes:
    return json.dumps({"before": before, "after": after, "source": SOURCE | source, "op": op}).encode()


def row(number: int, value: str | None = "x") -> dict[str, Any]:
    return {"id": number, "v": value}


SIGNAL = {"id": "6d5f-open", "type": "snapshot-window-open", "data": "{}"}
_NOTICE = {
    "id": "9",
    "aggregate_type": "Incremental Snapshot",
    "type": "STARTED",
    "additional_data": {"connector_name": "s"},
    "timestamp": 1,
}
_MESSAGE = {"op": "m", "ts_ms": 1, "source": {"connector": "postgresql"}, "message": {"prefix": "p", "content": "AA=="}}
_DDL = {"source": {"connector": "mysql"}, "ts_ms": 1, "databaseName": "d", "ddl": "CREATE TABLE t", "tableChanges": []}
_END = {"status": "END", "id": "7:1", "event_count": 2, "data_collections": [], "ts_ms": 1}
NO_ROWS: list[tuple[dict[str, str], Any, Skipped]] = [
    ({"serverName": "s"}, {"ts_ms": 1}, Skipped.HEARTBEAT),
    ({"id": "7:1"}, _END, Skipped.TRANSACTION),
    ({"databaseName": "d"}, _DDL, Skipped.SCHEMA_CHANGE),
    ({"prefix": "p"}, _MESSAGE, Skipped.MESSAGE),
    ({"id": "9"}, _NOTICE, Skipped.NOTIFICATION),
    ({"id": "6d5f-open"}, SIGNAL, Skipped.WATERMARK),
    ({"id": "6d5f-open"}, {**SIGNAL, "__deleted": "false"}, Skipped.WATERMARK),
    ({"id": "6d5f-open"}, json.loads(event("c", SIGNAL)), Skipped.WATERMARK),
]
"""Key and value of each kind of record that changes no row."""


def records(*pairs: tuple[Any, bytes | None], headers: list[Headers | None] | None = None) -> Records:
    keys = [k if k is None or isinstance(k, bytes) else json.dumps({"id": k}).encode() for k, _ in pairs]
    return chunk_of(keys, [v for _, v in pairs], headers, first=100)


def chunk_of(
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Iterable[Headers | None] | None = None,
    *,
    first: int = 0,
    sent: int = 0,
) -> Records:
    """Records of one partition, from this offset on, all sent at this time."""
    found = list(keys)
    offsets = np.arange(first, first + len(found), dtype=np.int64)
    told = None if headers is None else list(headers)
    return Records("t", 0, offsets, np.full_like(offsets, sent), found, list(values), told)
