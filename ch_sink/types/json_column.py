"""Columns of type JSON: what the server would refuse is found here, where it concerns one record and not the insert.

ClickHouse's JSON holds objects only, each path once (``{"a":{"b":1},"a.b":2}`` has one twice), no number beyond a
Float64, and 500 levels at most here (the server ends at about a thousand). A null member vanishes there.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from ch_sink.types.converter import OutOfRange, PerValue, Reaction, shown

__all__ = ["JsonColumn"]

_DEEPEST = 500


class JsonColumn(PerValue):
    """JSON texts, or literals that ``text`` makes texts of, into JSON."""

    def __init__(
        self,
        wire: Any,
        reaction: Reaction,
        *,
        text: Callable[[Any], str | None],
        is_placeholder: Callable[[Any], bool] | None,
    ) -> None:
        def one(value: Any) -> str | None:
            found = text(value)
            if found is not None:
                _check(found)
            return found

        super().__init__(wire, pa.string(), one, reaction=reaction, is_placeholder=is_placeholder)


def _check(text: str) -> None:
    """Raises OutOfRange for a text that the server would not take."""
    try:
        msgspec.json.decode(text)
        found = json.loads(text, object_pairs_hook=_object)
    except OutOfRange:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise _refused(f"no JSON: {shown(text)} ({fault})") from fault
    if not isinstance(found, dict):
        raise _refused(f"no JSON object: {shown(text)}")
    _walk(found, 1, {})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _refused(f"the JSON object has a key twice: {shown(sorted(name for name, _ in pairs))}")
    return found


def _walk(value: Any, depth: int, paths: dict[str | None, Any]) -> None:
    """Raises OutOfRange if a dotted path is there twice, or too deep.

    ``paths``: those found so far from here on, as a tree of their parts: as texts they would be as long as all names
    around them. A path ends where its tree has None.
    """
    if depth > _DEEPEST:
        raise _refused(f"the JSON has more than {_DEEPEST} levels")
    if isinstance(value, list):
        for item in value:
            _walk(item, depth + 1, {})
    if not isinstance(value, dict):
        return
    for name, member in value.items():
        below = paths
        for part in name.split("."):
            below = below.setdefault(part, {})
        if isinstance(member, dict):
            _walk(member, depth + 1, below)
            continue
        if None in below:
            raise _refused(f"the JSON object has a path twice: {shown(name)} at its end")
        below[None] = {}
        if isinstance(member, list):
            _walk(member, depth + 1, {})


def _refused(message: str) -> OutOfRange:
    return OutOfRange(message, hint="make the column String, which keeps JSON as it was sent")
