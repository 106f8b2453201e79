"""The procedure of ``rehearse``: what would the table be under another configuration?

A table is made as ``init`` would make it, beside the sink's own tables, and the topic is read into it by the other
configuration's pipeline, up to what the stream has applied. Then it is compared with the live table.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from ch_sink.clickhouse import Client, detect
from ch_sink.config import Config
from ch_sink.decode import decoder_for
from ch_sink.discovery.look import look_into
from ch_sink.discovery.wiring import table_spec, topic_offsets
from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.kafka import schema_registry
from ch_sink.model.counted import counted
from ch_sink.spark.wiring import concerned_by, stream_settings
from ch_sink.stream.coordinator import StreamSettings
from ch_sink.table.ddl import create_table
from ch_sink.table.model import TargetTable
from ch_sink.trust.condition import expect_condition
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold, MakeDecoder
from ch_sink.trust.history import begin_at_load, is_incomplete, unjudged, without_history
from ch_sink.trust.report import Report
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.sides import Side
from ch_sink.trust.subject import Subject
from ch_sink.trust.topic import KafkaTopic, TopicReader
from ch_sink.trust.verify import FOUND
from ch_sink.types.column import Column
from ch_sink.types.sql import quote

__all__ = ["Other", "Rehearsed", "other_of", "rehearsed"]

_SUFFIX = "__ch_sink_rehearsed"


@dataclass(frozen=True, slots=True)
class Other:
    """The configuration that is tried."""

    settings: StreamSettings
    create: str
    """CREATE TABLE, for `table_name` in the database of the live stream's own tables."""
    decoder: MakeDecoder
    topic: TopicReader | None = None
    """The part of the topic that it applies, if that is not what the live stream applies."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The live table against the one that the other configuration gives."""

    report: Report
    """*Missing* are rows that only the other table has, *extra* those that only the live one has."""
    engine: tuple[str, str]
    """The other table's engine, and the live one's."""
    only_other: tuple[str, ...]
    only_live: tuple[str, ...]
    types: dict[str, tuple[str, str]]
    """Column → its type in the other table and in the live one, where they differ; such columns are not compared."""
    layout: dict[str, tuple[str, str]]
    """Clause of CREATE TABLE → what the other table has there and what the live one has, where they differ."""

    @property
    def equal(self) -> bool:
        """Whether the other configuration would give the same table."""
        columns = self.only_other or self.only_live or self.types
        return self.report.equal and self.engine[0] == self.engine[1] and not (columns or self.layout)

    def as_json(self) -> dict[str, Any]:
        return {
            **self.report.as_json(),
            "equal": self.equal,
            "engine": list(self.engine),
            "columns_added": list(self.only_other),
            "columns_lacking": list(self.only_live),
            "types": {name: list(pair) for name, pair in self.types.items()},
            "layout": {clause: list(pair) for clause, pair in self.layout.items()},
        }


def table_name(live: TargetTable) -> str:
    """The table into which is rehearsed."""
    return live.name + _SUFFIX


def other_of(config: Config, live: Subject) -> Other:
    """What is tried of another configuration. Raises ConfigError if it reads another topic; ChSinkError."""
    if config.kafka.topic != live.settings.topic:
        raise ConfigError(
            f"the other configuration reads topic {config.kafka.topic}, and the stream reads {live.settings.topic}",
            hint="Rehearse another configuration of the same topic; choose one of several with --only.",
        )
    place = {"database": live.database, "table": table_name(live.table), "cluster": None}
    config = config.model_copy(update={"clickhouse": config.clickhouse.model_copy(update=place)})
    with topic_offsets(config) as offsets:
        seen = look_into(config, offsets.state(config.kafka.topic), live.table.years)
    if seen.schema is None:
        raise StreamFailed(f"the columns of the table are not known: {seen.why}", hint="Is the topic empty?")
    spec = replace(table_spec(config), replication="none", cluster=None)
    policy = config.policy()
    return Other(
        stream_settings(config),
        create_table(seen.schema, spec),
        lambda now, before: decoder_for(
            now, policy, want_before=before, format=config.format, registry=schema_registry(config.kafka.registry())
        ),
        replace(live.topic, concerned=concerned_by(config)) if isinstance(live.topic, KafkaTopic) else None,
    )


def rehearsed(
    live: Subject,
    other: Other,
    *,
    columns: Sequence[str] = (),
    condition: str = "",
    examples: int = 10,
    say: Callable[[str], None] = lambda _: None,
) -> Rehearsed:
    """Make the other table, compare, and drop it again.

    Raises StreamFailed if the rows cannot be compared; ChSinkError.

    Args:
        columns: names of the columns that are compared, besides the key; empty for all.
        condition: SQL over columns of both tables.
    """
    began = time.monotonic()
    expect_condition(live, condition)
    # One rehearsal of a table at a time: the name of these tables is the lock.
    shape = replace(
        shadow_of(live.table, live.database, live.key, live.columns), name=live.table.name + "__ch_sink_rehearsal"
    )
    with ExitStack() as open_, shadow_tables(live.client, shape) as shadow:
        open_.enter_context(_made(live.client, live.database, table_name(live.table), other.create))
        table = detect(live.client, live.database, table_name(live.table), other.settings.policy)
        compared, types = _common(live, table, columns)
        topic = live.topic.state(live.settings.topic)
        applied = live.reached(topic.topic_id).applied
        kept = live.kept(table) if is_incomplete(live.ledger, topic) else None
        fold = Fold(live.client, table, other.settings, other.topic or live.topic, other.decoder, kept)
        open_.callback(fold.close)
        began_at = begin_at_load(fold, live.ledger, topic)
        say(f"reading {counted(sum(applied.values()) - began_at, 'offset')} of {topic.topic}")
        fold.to(applied)
        differences = Differences(
            live.client,
            shadow.differences,
            Side(table, live.key, compared),
            Side(live.table, live.key, compared, live.condition),
            condition=condition,
        )
        say("comparing")
        totals = differences.totals()
        found = differences.find(0, totals)
        changing = _judged(live, fold, differences, topic.topic_id) if found else 0
        beyond = unjudged(live.ledger, topic, live.key, live.client, table)
        unknown = without_history(differences, FOUND, beyond)
        mine, theirs = {c.name for c in table.source_columns}, {c.name for c in live.table.source_columns}
        report = replace(
            Report.of(
                differences,
                FOUND,
                examples,
                stream=live.settings.name,
                table=live.table,
                against="another configuration",
                rows=totals.table_rows,
            ),
            changing=changing,
            unknown=unknown,
            dead_letters=sum(fold.letters.kinds.values()),
            seconds=time.monotonic() - began,
            position=", ".join(f"{p}: {offset}" for p, offset in sorted(fold.at.items())),
        )
        shadow.expect_own(live.client)
        return Rehearsed(
            report,
            (str(table.engine), str(live.table.engine)),
            tuple(sorted(mine - theirs)),
            tuple(sorted(theirs - mine)),
            types,
            _layout(table, live.table),
        )


def _layout(other: TargetTable, live: TargetTable) -> dict[str, tuple[str, str]]:
    order = _order(other), _order(live)
    clauses = {"ORDER BY": order, "PARTITION BY": (other.partition_key, live.partition_key)}
    return {clause: pair for clause, pair in clauses.items() if pair[0] != pair[1]}


def _order(table: TargetTable) -> str:
    """Without the version that the server adds in a VersionedCollapsingMergeTree."""
    return ", ".join(element for element in table.sorting_key if element != table.engine.version_column)


@contextmanager
def _made(client: Client, database: str, name: str, create: str) -> Iterator[None]:
    drop = f"DROP TABLE IF EXISTS {quote(database)}.{quote(name)} SYNC"
    client.command(drop, doing=f"drop {name}")
    try:
        client.command(create, doing=f"create {name}")
        yield
    finally:
        with suppress(ChSinkError):  # the next rehearsal drops it
            client.command(drop, doing=f"drop {name}")


def _common(
    live: Subject, table: TargetTable, columns: Sequence[str]
) -> tuple[tuple[Column, ...], dict[str, tuple[str, str]]]:
    """The columns that are compared, and the types of those that differ. Raises StreamFailed without a common key."""
    there = {column.name: column for column in table.source_columns}
    lacking = [name for name in live.key if name not in there]
    both = [column for column in live.columns if column.name in there]
    types = {c.name: (there[c.name].type, c.type) for c in both if there[c.name].type != c.type}
    if lacking or any(name in types for name in live.key):
        raise StreamFailed(
            f"the other configuration has no key column {(lacking or sorted(types))[0]!r} as the live table has it: "
            "their rows cannot be compared",
            hint="Rehearse with the same key, and compare the tables by SQL after `ch_sink replay --into`.",
        )
    unknown = [name for name in columns if name not in {c.name for c in both}]
    if unknown:
        raise StreamFailed(f"not both tables have a column {unknown[0]!r}", hint="Name others with --columns.")
    wanted = {*columns, *live.key} if columns else {c.name for c in both}
    return tuple(c for c in both if c.name in wanted and c.name not in types), types


def _judged(live: Subject, fold: Fold, differences: Differences, topic_id: str) -> int:
    """Note the keys that really differ; returns how many have changed since, and are not judged."""
    fold.to(live.reached(topic_id).touched)
    differences.unchanged(2, 0)
    differences.move(2, FOUND)
    return differences.changed(4, 0, 2)
