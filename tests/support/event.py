"""Change events of a table with two columns, in a few words."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from ch_sink.model.change import Headers, Records

SOURCE = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.1", "pos": 1, "row": 0}


def event(op: str = "c", after: Any = None, before: Any = None, **source: Any) -> bytes:
    return json.dumps({"before": before, "after": after, "source": SOURCE | source, "op": op}).encode()


def row(number: int, value: str | None = "x") -> dict[str, Any]:
    return {"id": number, "v": value}


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
