"""Change events of a table with two columns, in a few words."""

import json
from typing import Any

import numpy as np

from ch_sink.model.change import Headers, Records

SOURCE = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.1", "pos": 1, "row": 0}


def event(op: str = "c", after: Any = None, before: Any = None, **source: Any) -> bytes:
    return json.dumps({"before": before, "after": after, "source": SOURCE | source, "op": op}).encode()


def row(number: int, value: str | None = "x") -> dict[str, Any]:
    return {"id": number, "v": value}


def records(*pairs: tuple[Any, bytes | None], headers: list[Headers | None] | None = None) -> Records:
    n = len(pairs)
    keys = [k if k is None or isinstance(k, bytes) else json.dumps({"id": k}).encode() for k, _ in pairs]
    return Records("t", 0, np.arange(100, 100 + n), np.zeros(n, dtype=np.int64), keys, [v for _, v in pairs], headers)
