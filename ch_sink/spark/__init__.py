"""Spark: the session, the executor, the job; and the door for DataFrames, `sink`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ch_sink.spark.foreach_batch import sink

__all__ = ["sink"]

_PLACES = {"sink": "ch_sink.spark.foreach_batch"}


def __getattr__(name: str) -> Any:
    """The door, imported when it is asked for: the commands of this package start without it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
