"""Spark: the session, the executor, the job; and the door for DataFrames: `sink`, `changes`, `history`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ch_sink.spark.change_feed import changes
    from ch_sink.spark.foreach_batch import sink
    from ch_sink.spark.ledger_frame import history

__all__ = ["changes", "history", "sink"]

_PLACES = {
    "changes": "ch_sink.spark.change_feed",
    "history": "ch_sink.spark.ledger_frame",
    "sink": "ch_sink.spark.foreach_batch",
}


def __getattr__(name: str) -> Any:
    """The door, imported when it is asked for: the commands use this package without it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found
