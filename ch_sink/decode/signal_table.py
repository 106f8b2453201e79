"""Recognises rows of the connector's signal table, which a topic router may mix with those of a table."""

from typing import Any

import msgspec

from ch_sink.decode.flattened.added_fields import DELETED

__all__ = ["FIELDS", "WINDOW", "is_signal", "names_signal"]

FIELDS = frozenset(("id", "type", "data"))
"""Columns of every signal table."""
WINDOW = b"snapshot-window-"
SIGNALS = frozenset(
    """
    snapshot-window-open snapshot-window-close execute-snapshot stop-snapshot pause-snapshot resume-snapshot log
    schema-changes set-binlog-position
    """.split()
)


def is_signal(payload: bytes, prefix: str) -> bool:
    """Whether an envelope or a flattened row is a signal: the window of an incremental snapshot opens, …

    ``prefix``: the prefix of fields that flattening adds to a row.
    """
    try:
        return names_signal(msgspec.json.decode(payload), prefix)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False


def names_signal(found: Any, prefix: str) -> bool:
    """:func:`is_signal` of a decoded payload."""
    if not isinstance(found, dict):
        return False
    image = found.get("after") or found.get("before") or found
    if not isinstance(image, dict):
        return False
    names = {n for n in image if n != DELETED and not (prefix and n.startswith(prefix))}
    return names == FIELDS and isinstance(image["type"], str) and image["type"] in SIGNALS
