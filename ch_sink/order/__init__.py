"""Order of changes: versions, epochs, re-delivery."""

from ch_sink.order.backward import BackwardStep
from ch_sink.order.sequence import Sequenced, sequence, strategy_for
from ch_sink.order.state import SourceState, State, is_one_of_several
from ch_sink.order.version import Layout, Words, layout_for

__all__ = [
    "BackwardStep",
    "Layout",
    "Sequenced",
    "SourceState",
    "State",
    "Words",
    "is_one_of_several",
    "layout_for",
    "sequence",
    "strategy_for",
]
