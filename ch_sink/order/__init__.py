"""Order of changes: versions, epochs, re-delivery."""

from ch_sink.model.change import BackwardStep
from ch_sink.order.redelivery import COUNT_AGAIN
from ch_sink.order.sequence import Earlier, Rules, sequence, strategy_for
from ch_sink.order.state import Decision, Sequenced, SourceState, State, Trace, is_one_of_several
from ch_sink.order.version import Layout, Words, layout_for

__all__ = [
    "COUNT_AGAIN",
    "BackwardStep",
    "Decision",
    "Earlier",
    "Layout",
    "Rules",
    "Sequenced",
    "SourceState",
    "State",
    "Trace",
    "Words",
    "is_one_of_several",
    "layout_for",
    "sequence",
    "strategy_for",
]
