"""Keeps what a Python worker holds for good out of garbage collections.

PySpark's daemon collects garbage after each task (`pyspark.daemon`). Going over the objects of all imported modules and
kept streams takes 50 to 100 ms of processor time, more than the task itself where a job has many small tables.
"""

import gc

from ch_sink.spark.kept import kept_stream

__all__ = ["Garbage", "garbage"]


class Garbage:
    """What of this process collections pass over."""

    def __init__(self) -> None:
        self._streams = 0

    def set_aside(self) -> None:
        """Leave out all that is alive now, if twice as many streams have come as at the last time.

        What is left out and no longer used is still freed, except for cycles. So this may happen a few times only.
        """
        streams = kept_stream.cache_info().misses
        if streams >= max(1, 2 * self._streams):
            self._streams = streams
            gc.collect()
            gc.freeze()


_here = Garbage()


def garbage() -> Garbage:
    """The one of this process. Spark ships what the functions of a task refer to, except for modules' functions."""
    return _here
