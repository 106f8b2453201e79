"""The biography of one row of a configured stream."""

from dataclasses import replace
from typing import Any

from ch_sink.config import Config
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowsRemoved, TopicFacts
from ch_sink.trust.explain import Biography, biography, stored_rows
from ch_sink.trust.history import loads_of
from ch_sink.trust.judge import Noted
from ch_sink.trust.key import wanted_key
from ch_sink.trust.own_tables import OwnTables, own_tables
from ch_sink.trust.subject import Subject
from ch_sink.trust.wiring import subject_of

__all__ = ["explained", "noted_of"]


def noted_of(subject: Subject, own: OwnTables, topic_id: str) -> Noted:
    """What the ledger and the sink's own tables say of the topic's records. Raises ClickHouseError."""
    removed = [fact for fact in subject.ledger.facts(RowsRemoved) if fact.topic_id == topic_id]
    return replace(
        own.noted(topic_id, subject.reached(topic_id).applied),
        loads=loads_of(subject.ledger, topic_id),
        erased=frozenset((fact.partition, offset) for fact in removed for offset in fact.skip),
    )


def explained(config: Config, key: dict[str, Any]) -> Biography:
    """Read the topic for the events of one key. Raises ChSinkError."""
    subject = subject_of(config)
    wanted = wanted_key(subject.client, subject.table, key)
    stored = stored_rows(subject.client, subject.table, wanted)
    settings = subject.settings
    topic_id = subject.topic.state(settings.topic).topic_id
    epochs = [fact.epoch for fact in subject.ledger.facts(TopicFacts) if fact.topic_id == topic_id]
    noted = noted_of(subject, own_tables(config, subject.client), topic_id)
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
