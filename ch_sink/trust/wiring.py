"""What a comparison needs, from a stream's configuration."""

from urllib.parse import urlsplit

from ch_sink.clickhouse import detect, server_facts
from ch_sink.config import Config
from ch_sink.config.source import SOURCE_KINDS
from ch_sink.decode import decoder_for
from ch_sink.discovery.look import look_into, schema_for
from ch_sink.discovery.wiring import client_of, kafka_settings, key_columns, ledger_of, topic_offsets
from ch_sink.errors import ConfigError
from ch_sink.kafka import schema_registry
from ch_sink.snapshot import SourceAddress, open_source
from ch_sink.snapshot.reader import OPTIONS, url_options
from ch_sink.spark.wiring import concerned_by, stream_settings
from ch_sink.table.model import TargetTable
from ch_sink.trust.subject import Subject
from ch_sink.trust.topic import KafkaTopic
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.defaults import is_constant
from ch_sink.types.sql import quote

__all__ = ["source_address", "subject_of"]


def subject_of(config: Config) -> Subject:
    """The stream's table and topic. Raises ChSinkError if one of them is missing."""
    client, place, policy = client_of(config), config.clickhouse, config.policy()
    table = detect(client, place.database, place.table, policy)
    with topic_offsets(config) as offsets:
        topic = offsets.state(config.kafka.topic)
    seen = look_into(config, topic, server_facts(client).years)
    schema = schema_for(seen, table)
    return Subject(
        client,
        stream_settings(config),
        table,
        key_columns(config, schema, table),
        filled_columns(table, schema),
        config.state_database,
        KafkaTopic(kafka_settings(config), config.kafka.topic, concerned_by(config)),
        lambda now, before: decoder_for(
            now,
            policy,
            want_before=before,
            format=config.format,
            registry=schema_registry(config.kafka.registry()),
        ),
        ledger_of(config, client),
        schema,
        (lambda: open_source(source_address(config))) if config.source is not None else None,
        " AND ".join(f"{quote(name)} = {sql}" for name, sql in policy.columns.add if name in policy.columns.source),
    )


def source_address(config: Config) -> SourceAddress:
    """Where the stream's source table is. Raises ConfigError."""
    chosen = config.source
    assert chosen is not None
    parts = urlsplit(chosen.url)
    kind, port = SOURCE_KINDS[parts.scheme]
    database = parts.path.strip("/")
    schema, table = _named(config, kind, database)
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


def _named(config: Config, kind: str, database: str) -> tuple[str, str]:
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
    if stated or not carried or f".{from_topic}".endswith(f".{carried}"):
        return _cut(stated or from_topic, first=kind == "mongodb")
    if kind in ("mysql", "mongodb"):
        return _cut(carried, first=True)
    if "." not in carried:
        name = "{table}" if config.split else carried
        raise ConfigError(
            f"source table {carried} of topic {config.kafka.topic} is named without its schema",
            hint=f'State source.table with its schema, such as "public.{name}".',
        )
    if kind == "sqlserver" and carried.count(".") == 2 and not carried.casefold().startswith(f"{database}.".casefold()):
        raise ConfigError(
            f"source.url names database {database}, and stream {config.stream_name!r} carries {carried}",
            hint="Give the streams of each database a file of their own, with its name in source.url.",
        )
    inside = carried.removeprefix(f"{database}.")
    if inside != carried and "." in inside:
        return _cut(inside, first=True)
    return _cut(".".join(carried.split(".")[-2:]), first=False)


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


def filled_columns(table: TargetTable, schema: RowSchema | None) -> tuple[Column, ...]:
    """Columns that events fill. One that the topic never states, and whose default varies, is the user's own."""
    stated = {f.name for f in (*schema.fields, *schema.key)} if schema is not None else set()
    names = [c.name for c in table.columns]
    return tuple(
        c
        for c in table.stored_columns
        if c.name in stated or not c.default_expression or is_constant(c.default_expression, names)
    )
