"""Let a stream read its topic again, into the same table: every change that is stored is recognised."""

import time

from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, Ledger

__all__ = ["rewind"]


def rewind(ledger: Ledger, topic: TopicState) -> None:
    """Record that the stream goes on at the earliest offsets, in the state that it once had there.

    The ledger must be claimed. The next batches then have the versions of the first time.
    """
    now = time.time()
    states = ledger.states_at(topic.topic_id, topic.low)
    ledger.results(
        [
            FinishedRange(
                topic.topic,
                topic.topic_id,
                partition,
                low,
                low,
                state=states.get(partition) or State().to_json(),
                started=now,
                finished=now,
            )
            for partition, low in sorted(topic.low.items())
        ]
    )
