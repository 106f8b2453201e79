"""What `ch_sink explain` shows of a row: its life by the topic, and the rows that are stored."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.config import Config
from ch_sink.merge.resolved import version_column
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import RowsEdited
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.biography import Biography
from ch_sink.trust.history import facts_of, loads_of
from ch_sink.trust.key import WantedKey, wanted_key
from ch_sink.trust.life import Course, Reading, biography
from ch_sink.trust.own_tables import Noted, OwnTables, own_tables
from ch_sink.trust.repair_sql import counts
from ch_sink.trust.subject import Subject
from ch_sink.trust.topic import Check, never_stops
from ch_sink.trust.wiring import subject_of
from ch_sink.types.sql import OWN, quote

_SETTINGS: dict[str, str | int] = {
    **EVERY_TYPE,
    "output_format_json_quote_decimals": 1,
    "output_format_json_quote_64bit_integers": 0,
}


def explained(
    config: Config, found: Biography, check: Check = never_stops, say: Callable[[str], None] = lambda _: None
) -> None:
    """Read the topic of a configured stream for the events of the key of ``found``, and note them there.

    Raises ChSinkError; what was found until then stays.
    """
    subject = subject_of(config, check)
    life_of(subject, own_tables(config, subject.client), found, say)


def life_of(
    subject: Subject, own: OwnTables, found: Biography, say: Callable[[str], None] = lambda _: None
) -> Biography:
    """The same of a stream that is known already; returns ``found``."""
    table = subject.table
    wanted = wanted_key(subject.client, table, found.key)
    found.stored = stored_rows(subject.client, table, wanted)
    mine = f"{wanted.condition} AND ({subject.condition})" if subject.condition else wanted.condition
    versions = _stored_versions(subject.client, table, mine)
    topic = subject.topic.state(subject.settings.topic)
    epochs = [fact.epoch for fact in facts_of(subject.ledger, topic.topic_id)]
    reading = Reading.of(subject)
    mark = reading.target.deleted
    found.deleted = mark and (mark[0], str(mark[1]))
    noted = replace(noted_of(subject, own, topic.topic_id), stored=versions)
    courses = _courses(subject, topic, min(epochs, default=0))
    return biography(reading, wanted, noted, epoch=max(epochs, default=0), courses=courses, found=found, say=say)


def noted_of(subject: Subject, own: OwnTables, topic_id: str) -> Noted:
    """What the ledger and the sink's own tables say of the topic's records. Raises ClickHouseError."""
    removed = [fact for fact in subject.ledger.facts(RowsEdited) if fact.topic_id == topic_id]
    return replace(
        own.noted(topic_id, subject.reached(topic_id).applied),
        loads=loads_of(subject.ledger, topic_id),
        erased=frozenset((fact.partition, offset) for fact in removed for offset in fact.skip),
    )


def stored_rows(client: Client, table: TargetTable, wanted: WantedKey) -> list[dict[str, Any]]:
    """The rows of the key as they are in the table."""
    names = [quote(column.name) for column in table.columns if column.default_kind != "EPHEMERAL"]
    shown = ", ".join(f"toString({name}) AS {name}" for name in names)
    return client.rows(
        f"SELECT {shown} FROM (SELECT * FROM {table.qualified} WHERE {wanted.condition})",
        settings=_SETTINGS,
        of=table,
    )


def _stored_versions(client: Client, table: TargetTable, condition: str) -> frozenset[int] | None:
    """Versions of the rows that meet a condition, without those that collapse; None if versions are not numbers."""
    name, engine = version_column(table), table.engine
    if name is None or not counts(table):
        return None
    collapses = engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
    having = f"HAVING sum({quote(engine.sign_column or '')}) > 0" if collapses else ""
    found = client.rows(
        f"SELECT toString({quote(name)}) AS {OWN}v FROM {table.qualified} WHERE {condition} "
        f"GROUP BY {quote(name)} {having}",
        settings=_SETTINGS,
        of=table,
    )
    return frozenset(int(row[f"{OWN}v"]) for row in found)


def _courses(subject: Subject, topic: TopicState, epoch: int) -> dict[int, Course]:
    """How the stream began the partitions that it has read, and where their epochs rose.

    They rise as a batch begins, if partitions were added or if another strategy orders the changes. Where positions
    step back, the topic shows it.
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
