"""The biography of one row of a configured stream."""

from typing import Any

from ch_sink.config import Config
from ch_sink.pipeline.target import Target
from ch_sink.ports import TopicFacts
from ch_sink.trust.explain import Biography, biography, stored_rows
from ch_sink.trust.key import wanted_key
from ch_sink.trust.own_tables import own_tables
from ch_sink.trust.wiring import subject_of

__all__ = ["explained"]


def explained(config: Config, key: dict[str, Any]) -> Biography:
    """Read the topic for the events of one key. Raises ChSinkError."""
    subject = subject_of(config)
    wanted = wanted_key(subject.client, subject.table, key)
    stored = stored_rows(subject.client, subject.table, wanted)
    settings = subject.settings
    topic_id = subject.topic.state(settings.topic).topic_id
    epochs = [fact.epoch for fact in subject.ledger.facts(TopicFacts) if fact.topic_id == topic_id]
    noted = own_tables(config, subject.client).noted(topic_id, subject.reached(topic_id).applied)
    found = biography(
        subject.topic,
        settings.topic,
        Target.of(subject.table, settings.policy),
        # A delete of a row without a key is known by the values that it had.
        subject.decoder(subject.table, not subject.key),
        key,
        wanted,
        epoch=max(epochs, default=0),
        noted=noted,
    )
    found.stored = stored
    return found
