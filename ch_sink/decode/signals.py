"""Rows of the connector's signal table, which a topic router may have put among those of a table."""

from typing import Any

import msgspec

__all__ = ["FIELDS", "SIGNALS", "WINDOW", "is_signal"]

FIELDS = frozenset(("id", "type", "data"))
"""Columns of every signal table."""
WINDOW = b"snapshot-window-"
SIGNALS = frozenset(
    """
    snapshot-window-open snapshot-window-close execute-snapshot stop-snapshot pause-snapshot resume-snapshot log
    schema-changes set-binlog-position
    """.split()
)


class _Event(msgspec.Struct, gc=False):
    after: dict[str, Any] | None = None
    before: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Event)


def is_signal(payload: bytes) -> bool:
    """Whether an envelope tells of a signal: the window of an incremental snapshot opens or closes, and others."""
    try:
        event = _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    image = event.after or event.before
    return image is not None and image.keys() == FIELDS and image["type"] in SIGNALS
