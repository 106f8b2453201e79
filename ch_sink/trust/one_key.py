"""One key: what `explain` shows of it, and how `purge --key` removes it from every table, physically and at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.arrow_io import from_stream
from ch_sink.clickhouse.lookup import max_version
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config
from ch_sink.errors import StreamFailed
from ch_sink.merge.resolved import version_column
from ch_sink.model.counts import counted
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import RowsEdited
from ch_sink.table.model import TargetTable
from ch_sink.trust.biography import Biography
from ch_sink.trust.history import facts_of, loads_of
from ch_sink.trust.key import WantedKey, wanted_key
from ch_sink.trust.life import Course, Reading, biography
from ch_sink.trust.own_tables import (
    Noted,
    OwnTables,
    count,
    delete_rows,
    forget_keys,
    note_removed,
    own_tables,
    states_of_keys,
)
from ch_sink.trust.repair_sql import counts
from ch_sink.trust.shadow import clear_shadows
from ch_sink.trust.sides import Side
from ch_sink.trust.subject import Subject
from ch_sink.trust.successor import Successor
from ch_sink.trust.topic import Check, never_stops
from ch_sink.trust.wiring import subject_of
from ch_sink.types.sql import OWN, literal, quote

_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Erased:
    """How many rows of the key each table holds, or held."""

    stream: str
    key: dict[str, Any]
    applied: bool
    rows: dict[str, int]
    """Table → stored rows, of all versions."""
    remains: tuple[str, ...]
    """Places whose values of the key this cannot remove, and what would bring the row back."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "key": self.key,
            "applied": self.applied,
            "rows": self.rows,
            "remains": list(self.remains),
        }


def erased(
    subject: Subject,
    own: OwnTables,
    key: dict[str, Any],
    *,
    apply: bool,
    live: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Erased:
    """Count a key's rows and, with ``apply``, remove them. A run that is broken off is simply repeated.

    The stream stands still while they are looked for and removed: it could store a new row of the key in between.

    Args:
        live: the row may be there still; otherwise it must have been deleted in the source.

    Raises StreamFailed if the key does not fit, or if the stream would store rows of it again; ChSinkError.
    """
    _expect_erasable(subject)
    wanted = wanted_key(subject.client, subject.table, key, subject.key)
    mine = f"{wanted.condition} AND ({subject.condition})" if subject.condition else wanted.condition
    if not live:
        _expect_deleted(subject, mine)
    with subject.held("purge", say) if apply else nullcontext():
        rows, remains = _erased(subject, own, wanted, mine, apply=apply, live=live, say=say)
    return Erased(subject.settings.name, key, apply, rows, remains)


def _erased(
    subject: Subject,
    own: OwnTables,
    wanted: WantedKey,
    mine: str,
    *,
    apply: bool,
    live: bool,
    say: Callable[[str], None],
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Rows by table, and what remains. ``mine``: the condition of the key's rows."""
    table = subject.table
    topic_id = subject.topic.state(subject.settings.topic).topic_id
    applied = subject.reached(topic_id).applied
    say("reading the topic")
    epoch = max((f.epoch for f in facts_of(subject.ledger, topic_id)), default=0)
    life = biography(Reading.of(subject), wanted, own.noted(topic_id, applied), epoch=epoch)
    _expect_finished(life)
    keys = {raw.hex() for raw in life.raw_keys}
    _expect_no_open_swap(subject, topic_id, applied, keys)
    if not live:
        _expect_deleted(subject, mine)
    plan: list[tuple[TargetTable | StateTable, str, str | None]] = [
        (table, mine, None),
        *_own_rows(own, topic_id, life, wanted),
    ]
    rows = {_plain(one): count(subject.client, one, condition) for one, condition, _ in plan}
    ledger = own.ledger
    if apply:
        subject.still_alone()
        subject.ledger.check_claim()
        _drop_left(subject, own, say)
    if ledger is not None and (states := count(subject.client, ledger, states_of_keys(own.stream, keys))):
        rows[_plain(ledger)] = states
        if apply:
            say(f"rewriting states of {ledger.qualified}")
            forget_keys(subject.client, ledger.qualified, own.stream, keys, cluster=own.cluster)
    if apply:
        skip = tuple((e.partition, e.offset) for e in life.events)
        top, left = _highest(subject, mine)
        note_removed(subject.ledger, topic_id, applied, top, skip, left)
        for one, condition, cluster in plan:
            if rows[_plain(one)]:
                subject.ledger.check_claim()
                say(f"removing rows of {one.qualified}")
                delete_rows(subject.client, one.qualified, condition, cluster=cluster)
    at = _at_places(topic_id, life)
    unkeyed = count(subject.client, own.dead_letters, f"stream = {literal(own.stream)} AND key IS NULL AND NOT ({at})")
    return rows, (*_remains(life, unkeyed, subject), *_of_other_streams(own, at))


def _drop_left(subject: Subject, own: OwnTables, say: Callable[[str], None]) -> None:
    """Drop what killed commands have left beside the table: rows of the key may be there, and nobody needs them.

    Raises StreamFailed if a `verify` of this host is at work.
    """
    clear_shadows(subject.client, subject.table, subject.database)
    successor = Successor(subject.client, subject.table, subject.settings.policy, cluster=own.cluster)
    if successor.left:
        successor.clear(say)


def _plain(table: TargetTable | StateTable) -> str:
    return table.qualified.replace("`", "")


def _expect_erasable(subject: Subject) -> None:
    what = subject.table.qualified
    if not subject.key:
        raise StreamFailed(
            f"{what} has no key", hint="Remove its rows by a condition of your own: ALTER TABLE … DELETE."
        )
    if subject.table.distributed:
        raise StreamFailed(
            f"{what} is a Distributed table, and rows cannot be removed through it",
            hint="Run it on each shard: name its local table as clickhouse.table.",
        )


def _expect_finished(life: Biography) -> None:
    """Raise StreamFailed if the stream is going to store a row of the key that it knows of."""
    for event in life.events:
        if event.rule in ("not read yet", "waiting"):
            raise StreamFailed(
                f"the change at offset {event.offset} of partition {event.partition} is not stored yet ({event.rule}), "
                "and would bring the row back",
                hint="Let the stream apply it first.",
            )


def _expect_no_open_swap(subject: Subject, topic_id: str, applied: Mapping[int, int], keys: set[str]) -> None:
    """Raise StreamFailed if the stream has to remember a key, since its transaction goes on."""
    for partition, offset in applied.items():
        found = subject.ledger.state_before(topic_id, partition, offset)
        state = State.from_json(found[1] if found is not None else "")
        if keys & {*state.doubled, *state.closed}:
            raise StreamFailed(
                "the key is part of a swap of keys whose transaction has not ended yet",
                hint="Let the stream read further changes first.",
            )


def _expect_deleted(subject: Subject, condition: str) -> None:
    side = Side(subject.table, subject.key, subject.columns[:1], condition)
    [found] = subject.client.rows(f"SELECT count() AS n FROM ({side.live()})", of=subject.table)
    if int(found["n"]):
        raise StreamFailed(
            "the row is not deleted: its next change, or a repair, would bring it back",
            hint="Delete it in the source and let the stream apply that, or remove it anyway with --live.",
        )


def _highest(subject: Subject, condition: str) -> tuple[int, int | None]:
    """The highest version of the rows that meet the condition, and of the others; 0 and None if versions are times."""
    if not counts(subject.table):
        return 0, None
    others = f"NOT ifNull({condition}, 0)" + (f" AND ({subject.condition})" if subject.condition else "")
    return (
        max_version(subject.client, subject.table, condition=condition),
        max_version(subject.client, subject.table, empty=-1, condition=others),
    )


def _own_rows(
    own: OwnTables, topic_id: str, life: Biography, wanted: WantedKey
) -> list[tuple[StateTable, str, str | None]]:
    """Table, condition and cluster of the rows of the key in the sink's own tables."""
    mine = f"stream = {literal(own.stream)}"
    keys = ", ".join(f"unhex('{raw.hex()}')" for raw in sorted(life.raw_keys))
    of_key = f"key IN ({keys})" if keys else "0"
    records = f"{of_key} OR {_at_places(topic_id, life)}"
    plan = [(tables, f"{mine} AND ({records})", own.cluster) for tables in (own.dead_letters, own.pending)]
    ids = {tuple(numbers) for numbers in _handed_over(own.handover, own.stream, wanted)}
    ids |= {(name, commit >> 64, commit & _WORD, inner >> 64, inner & _WORD) for name, commit, inner in life.ids}
    listed = ", ".join(f"({literal(str(name))}, {', '.join(map(str, rest))})" for name, *rest in sorted(ids))
    of_rows = f"(source, commit_high, commit_low, inner_high, inner_low) IN ({listed})" if listed else "0"
    return [*plan, (own.handover, f"{mine} AND {of_rows}", own.cluster)]


def _at_places(topic_id: str, life: Biography) -> str:
    """The condition of the key's events; a former topic of the same name has other records at their offsets."""
    places = ", ".join(f"({e.partition}, {e.offset})" for e in life.events)
    return f"topic_id = {literal(topic_id)} AND (partition, offset) IN ({places})" if places else "0"


def _of_other_streams(own: OwnTables, condition: str) -> Iterator[str]:
    """The rows that streams of other names keep of the topic's records that meet the condition.

    A stream that still runs needs its waiting changes, so they are left alone.
    """
    for table in (own.dead_letters, own.pending):
        where = f"stream != {literal(own.stream)} AND {condition}"
        for row in table.rows(f"SELECT stream, count() AS n FROM $table WHERE {where} GROUP BY stream ORDER BY stream"):
            name = str(row["stream"])
            yield (
                f"{_plain(table)} has {counted(int(row['n']), 'row')} of the key for stream {name}. If that has ended "
                f"for good: ALTER TABLE {table.qualified} DELETE WHERE stream = {literal(name)} AND {condition}"
            )


def _handed_over(table: StateTable, stream: str, wanted: WantedKey) -> list[Sequence[Any]]:
    """Ids of the hand-over entries whose row has the key."""
    found = table.arrow(
        "SELECT source, commit_high, commit_low, inner_high, inner_low, row FROM $table "
        "WHERE stream = {stream:String} AND known = 1",
        {"stream": stream},
    )
    ids: list[Sequence[Any]] = []
    for entry in found.to_pylist():
        row = from_stream(entry.pop("row"))
        if _of_key(row, wanted):
            ids.append((entry.pop("source").decode(), *entry.values()))
    return ids


def _of_key(row: pa.Table, wanted: WantedKey) -> bool:
    if any(name not in row.column_names for name in wanted.columns):
        return False
    return bool(wanted.within(row).any())


def _remains(life: Biography, letters: int, subject: Subject) -> tuple[str, ...]:
    """``letters``: how many dead letters have no Kafka key."""
    events = len(life.events)
    said = []
    if events:
        said.append(
            f"the topic holds {counted(events, 'event')} of the key until it is compacted or trimmed: a stream that "
            "reads it again from there, after a lost ledger or a restored backup, stores the row again"
        )
    else:
        said.append("the topic has no event of the key, so its dead letters and waiting changes cannot be found")
    if letters:
        what = counted(letters, "dead letter")
        said.append(f"{what} without a Kafka key may belong to any row: see `ch_sink dead-letters show`")
    if any(event.rule == "handed over" or event.half for event in life.events):
        said.append("the row had another key: purge that key, too")
    if events and (names := ", ".join(rollup.choice.name for rollup in subject.rollups)):
        said.append(
            f"{names}: rollups keep the values of groups that are empty until `ch_sink resync` fills them again"
        )
    return tuple(said)


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
    mine = f"{wanted.condition} AND ({subject.condition})" if subject.condition else wanted.condition
    found.stored = stored_rows(subject.client, table, mine)
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
    """The notes of the ledger and the sink's own tables about the topic's records. Raises ClickHouseError."""
    removed = [fact for fact in subject.ledger.facts(RowsEdited) if fact.topic_id == topic_id]
    return replace(
        own.noted(topic_id, subject.reached(topic_id).applied),
        loads=loads_of(subject.ledger, topic_id),
        erased=frozenset((fact.partition, offset) for fact in removed for offset in fact.skip),
    )


def stored_rows(client: Client, table: TargetTable, condition: str) -> list[dict[str, Any]]:
    """The rows that meet a condition, as they are in the table."""
    # By name: a star leaves computed columns out.
    names = [quote(column.name) for column in table.columns]
    shown = ", ".join(f"toString({name}) AS {name}" for name in names)
    return client.rows(
        f"SELECT {shown} FROM (SELECT {', '.join(names)} FROM {table.qualified} WHERE {condition})",
        settings=_SETTINGS,
        of=table,
    )


def _stored_versions(client: Client, table: TargetTable, condition: str) -> frozenset[int] | None:
    """Versions of the rows that meet a condition, without those that collapse; None if versions are not numbers."""
    name, engine = version_column(table), table.engine
    if name is None or not counts(table):
        return None
    collapses = engine.family.collapses
    having = f"HAVING sum({quote(engine.sign_column or '')}) > 0" if collapses else ""
    found = client.rows(
        f"SELECT toString({quote(name)}) AS {OWN}v FROM {table.qualified} WHERE {condition} "
        f"GROUP BY {quote(name)} {having}",
        settings=_SETTINGS,
        of=table,
    )
    return frozenset(int(row[f"{OWN}v"]) for row in found)


def _courses(subject: Subject, topic: TopicState, epoch: int) -> dict[int, Course]:
    """The beginnings of the partitions that the stream has read, and the places where their epochs rose.

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
