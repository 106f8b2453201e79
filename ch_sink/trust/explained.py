"""The biography of one row of a configured stream."""

from dataclasses import replace
from typing import Any

from ch_sink.config import Config
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowsRemoved
from ch_sink.trust.explain import Biography, Course, biography, stored_rows, stored_versions
from ch_sink.trust.history import facts_of, loads_of
from ch_sink.trust.judge import Noted
from ch_sink.trust.key import wanted_key
from ch_sink.trust.own_tables import OwnTables, own_tables
from ch_sink.trust.stoppable import Check, never_stops
from ch_sink.trust.subject import Subject
from ch_sink.trust.wiring import subject_of

__all__ = ["explained", "life_of", "noted_of"]


def noted_of(subject: Subject, own: OwnTables, topic_id: str) -> Noted:
    """What the ledger and the sink's own tables say of the topic's records. Raises ClickHouseError."""
    removed = [fact for fact in subject.ledger.facts(RowsRemoved) if fact.topic_id == topic_id]
    return replace(
        own.noted(topic_id, subject.reached(topic_id).applied),
        loads=loads_of(subject.ledger, topic_id),
        erased=frozenset((fact.partition, offset) for fact in removed for offset in fact.skip),
    )


def explained(config: Config, key: dict[str, Any], check: Check = never_stops) -> Biography:
    """Read the topic for the events of one key. Raises ChSinkError."""
    subject = subject_of(config, check)
    return life_of(subject, own_tables(config, subject.client), key)


def life_of(subject: Subject, own: OwnTables, key: dict[str, Any]) -> Biography:
    """The same of a stream that is known already."""
    table, settings = subject.table, subject.settings
    wanted = wanted_key(subject.client, table, key)
    stored = stored_rows(subject.client, table, wanted)
    mine = f"{wanted.condition} AND ({subject.condition})" if subject.condition else wanted.condition
    versions = stored_versions(subject.client, table, mine)
    topic = subject.topic.state(settings.topic)
    epochs = [fact.epoch for fact in facts_of(subject.ledger, topic.topic_id)]
    found = biography(
        subject.topic,
        settings.topic,
        Target.of(table, settings.policy),
        # A delete of a row without a key is known by the values that it had.
        subject.decoder(table, not subject.key),
        key,
        wanted,
        epoch=max(epochs, default=0),
        course=_courses(subject, topic, min(epochs, default=0)),
        noted=replace(noted_of(subject, own, topic.topic_id), stored=versions),
    )
    found.stored = stored
    return found


def _courses(subject: Subject, topic: TopicState, epoch: int) -> dict[int, Course]:
    """How the stream began the partitions that it has read, and where their epochs rose.

    They rise as a batch begins, if partitions were added, if another strategy orders the changes, or if the stream
    reads a part again. Where positions step back, the topic shows it.
    """
    found: dict[int, Course] = {}
    for partition, low in topic.low.items():
        ranges = subject.ledger.states_over(topic.topic_id, partition, low, topic.high[partition])
        rises = [(start, State.base_epoch_of(text)) for start, _, text in ranges if text]
        before = subject.ledger.state_before(topic.topic_id, partition, low) if low else None
        known = State.from_json(before[1]) if before is not None else State()
        began = State(known.sources, known.base_epoch, names=known.names, profile=known.profile).raised_to(epoch)
        if rises:
            found[partition] = began, _upwards(rises)
    return found


def _upwards(rises: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Only where the epoch is higher than before."""
    kept: list[tuple[int, int]] = []
    for offset, epoch in sorted(rises):
        if not kept or epoch > kept[-1][1]:
            kept.append((offset, epoch))
    return kept
