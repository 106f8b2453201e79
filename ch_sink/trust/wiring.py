"""Builds the parts of comparisons and fillings from a stream's configuration.

Which table of the database a stream carries is stated by ``source.table``, by ``source_table``, or by the topic's name,
which has an underscore for each character of the table's that topics may not have; its events have the name.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache, partial
from urllib.parse import urlsplit

from ch_sink.clickhouse import (
    Client,
    detect,
    planned_rollups,
    server_facts,
)
from ch_sink.config import Config
from ch_sink.config.model import SOURCE_KINDS
from ch_sink.decode import decoder_for
from ch_sink.discovery.job_topics import source_names
from ch_sink.discovery.look import look_into, schema_for
from ch_sink.discovery.stream_key import recorded_key
from ch_sink.discovery.wiring import (
    client_of,
    dead_letters_of,
    handover_of,
    kafka_settings,
    key_columns,
    ledger_of,
    pending_of,
    states_of,
    table_spec,
    topic_offsets,
)
from ch_sink.errors import ConfigError
from ch_sink.kafka import schema_registry
from ch_sink.model.values import SourceTable
from ch_sink.snapshot import SourceAddress, open_source
from ch_sink.snapshot.reader import OPTIONS, url_options
from ch_sink.table.checks import expect_key
from ch_sink.trust.refill import Refill
from ch_sink.trust.shape import Wanted
from ch_sink.trust.subject import Subject, filled_columns
from ch_sink.trust.topic import Check, KafkaTopic, StoppableTopic, never_stops
from ch_sink.types.sql import quote
from ch_sink.wiring.streams import stream_settings
from ch_sink.wiring.tasks import concerned_by


def subject_of(config: Config, check: Check = never_stops) -> Subject:
    """The stream's table and topic; ``check`` ends what reads them. Raises ChSinkError if one of them is missing."""
    client, place, policy = client_of(config), config.clickhouse, config.policy()
    table = detect(client, place.database, place.table, policy)
    with topic_offsets(config) as offsets:
        topic = offsets.state(config.kafka.topic)
    recorded = recorded_key(config, client, topic.topic_id, table)
    seen = look_into(config, topic, server_facts(client).years, recorded)
    schema = schema_for(seen, table)
    key = key_columns(config, schema, table)
    if any(table.column(name) is None for name in key):
        expect_key(table, key)
    tables = cache(lambda: source_names(config, config.kafka.topic))
    return Subject(
        client,
        stream_settings(config),
        table,
        key,
        filled_columns(table, schema),
        config.state_database,
        StoppableTopic(KafkaTopic(kafka_settings(config), config.kafka.topic, concerned_by(config, table)), check),
        lambda now, before: decoder_for(
            now,
            policy,
            want_before=before,
            format=config.format,
            registry=schema_registry(config.kafka.registry()),
            key=recorded,  # records of a former key, which the stream has left out, may come first
        ),
        ledger_of(config, client),
        states_of(config, client.settings),
        schema,
        (lambda: open_source(source_address(config, tables))) if config.source is not None else None,
        " AND ".join(f"{quote(name)} = {sql}" for name, sql in policy.columns.add if name in policy.columns.source),
        check,
        partial(handover_of, config, client),
        lambda topic_id: _failed(config, client, topic_id),
        planned_rollups(client, table, config.rollup_choices(), policy.columns),
    )


def _failed(config: Config, client: Client, topic_id: str) -> set[tuple[int, int]]:
    """Partition and offset of the stream's dead letters that were not applied since, and of its waiting changes."""
    pending = pending_of(config, client)
    waiting = {(p, r.offset) for own, p in pending.places() if own == topic_id for r in pending.open(topic_id, p)}
    return waiting | dead_letters_of(config, client, topic_id).places()


def refill_of(config: Config, patience: float, check: Check = never_stops, still_alone: Check = never_stops) -> Refill:
    """The stream's table, topic and source. Raises ChSinkError if one of them is missing."""
    subject = replace(subject_of(config, check), still_alone=still_alone)
    client, place, spec = subject.client, config.clickhouse, table_spec(config)
    return Refill(
        subject,
        pending_of(config, client),
        handover_of(config, client, subject.table),
        partial(dead_letters_of, config, client),
        f"{quote(place.database)}.{quote(subject.settings.policy.table.notes)}",
        place.cluster,
        Wanted(replace(spec, types=replace(spec.types, years=subject.table.years)), _stated(config)),
        patience,
    )


def _stated(config: Config) -> frozenset[str]:
    """The section ``init`` as the file states it."""
    return frozenset(config.init.model_fields_set) | ({"engine"} if config.engine is not None else set())


_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")
"""Characters that no topic's name has."""
_DOTS = 3
"""Dots of a topic's name, from which on a table's may have one."""
Tables = Callable[[], Collection[SourceTable]]


def source_address(config: Config, tables: Tables = tuple) -> SourceAddress:
    """The place of the stream's source table; ``tables``: those that its events name. Raises ConfigError."""
    chosen = config.source
    assert chosen is not None
    parts = urlsplit(chosen.url)
    kind, port = SOURCE_KINDS[parts.scheme]
    database = parts.path.strip("/")
    schema, table = _named(config, kind, database, tables)
    if not table or (kind in ("postgresql", "sqlserver") and not database):
        raise ConfigError(
            f"source.url {chosen.url} names no database" if table else "source.table names no table",
            hint=f"Write it as {parts.scheme}://host:{port}/database.",
        )
    own = schema or {"postgresql": "public", "sqlserver": "dbo"}.get(kind, database)
    if not own:
        raise ConfigError("source.table names no database", hint="Write it as database.table.")
    several = "," in parts.netloc
    known = OPTIONS.get(kind)
    if known is not None and (other := [name for name, _ in url_options(chosen.url) if name not in known]):
        raise ConfigError(
            f"source.url has the option {other[0]!r}, which is not known", hint=f"Known are {', '.join(known)}."
        )
    return SourceAddress(
        kind,
        parts.netloc if several else parts.hostname or "",
        0 if several else parts.port or port,
        database,
        own,
        table,
        chosen.username,
        chosen.password.get_secret_value(),
        chosen.url,
    )


def _named(config: Config, kind: str, database: str, tables: Tables) -> tuple[str, str]:
    """Schema and name of the source table, as ``source.table``, ``source_table`` or the topic state them.

    Raises ConfigError if they do not say which of a topic's tables the stream carries.
    """
    assert config.source is not None
    stated, carried = config.source.table, config.source_table
    from_topic = ".".join(config.kafka.topic.split(".")[-2:])
    if stated and config.split and not _agree(stated, carried):
        raise ConfigError(
            f"source.table is {stated}, and stream {config.stream_name!r} carries {carried}: its topic has several "
            "source tables, each with a stream",
            hint='Leave source.table out, or make it a template such as "public.{table}".',
        )
    if kind == "sqlserver" and database:
        _expect_database(config, database, tables)
    if stated or not carried or f".{from_topic}".endswith(f".{carried}"):
        return (not stated and _renamed(config.kafka.topic, tables)) or _cut(
            stated or from_topic, first=kind == "mongodb"
        )
    if kind in ("mysql", "mongodb"):
        return _cut(carried, first=True)
    if "." not in carried:
        name = "{table}" if config.split else carried
        raise ConfigError(
            f"source table {carried} of topic {config.kafka.topic} is named without its schema",
            hint=f'Set source.table with its schema, such as "public.{name}".',
        )
    inside = carried.removeprefix(f"{database}.")
    if inside != carried and "." in inside:
        return _cut(inside, first=True)
    return _cut(".".join(carried.split(".")[-2:]), first=False)


def _expect_database(config: Config, database: str, tables: Tables) -> None:
    """Raises ConfigError for a stream of another database: SQL Server's connector reads several."""
    carried = config.source_table
    names = [carried] if carried.count(".") == 2 else [one.name for one in tables() if one.database and one.schema]
    others = [name for name in names if not name.casefold().startswith(f"{database}.".casefold())]
    if others:
        raise ConfigError(
            f"source.url names database {database}, and stream {config.stream_name!r} carries {others[0]}",
            hint="Give the streams of each database a file of their own, with its name in source.url.",
        )


def _renamed(topic: str, tables: Tables) -> tuple[str, str] | None:
    """The table after which the connector has named the topic, if it had to give it another name."""
    if "_" not in topic and topic.count(".") < _DOTS:
        return None
    names = {(one.schema or one.database, one.table) for one in tables()}
    found = [name for name in names if name[0] and f".{topic}".endswith(_as_topic(f".{'.'.join(name)}"))]
    return found[0] if len(found) == 1 else None


def _as_topic(name: str) -> str:
    """As connectors write a table's name in that of its topic: an underscore for each of Java's characters."""
    return _FOREIGN.sub(lambda found: "_" * (len(found[0].encode("utf-16-le")) // 2), name)


def _agree(stated: str, carried: str) -> bool:
    """Whether two names of a table, each as long as it was stated, may be one table's; nothing agrees with any."""
    one, other = f".{stated}", f".{carried}"
    return not carried or one.endswith(other) or other.endswith(one)


def _cut(name: str, *, first: bool) -> tuple[str, str]:
    """Schema, empty if there is none, and table of a name.

    ``first``: cut at the first dot, since the table's name may have others; else at the last one.
    """
    schema, _, table = name.partition(".") if first and "." in name else name.rpartition(".")
    return schema, table
