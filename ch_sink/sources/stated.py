"""Rows that are changes already, each with a number of its own that orders it (``ch_sink.spark.changes``)."""

from ch_sink.sources.base import Strategy
from ch_sink.sources.other import Other

__all__ = ["STATED"]


class Stated(Other):
    """The number is the whole position: whatever comes in which batch, and however often, has the same version.

    So there is nothing to be seen of re-delivery, and no order of arrival that could count.
    """

    default_strategy: Strategy = "stated"
    omits_values = True


STATED = Stated("stated")
