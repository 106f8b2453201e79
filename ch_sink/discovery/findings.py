"""The findings of ``check``, in order: each check relies on the ones before it."""

from collections.abc import Iterator
from typing import Literal

from ch_sink.clickhouse import (
    FAMILIES,
    Client,
    detect,
    expect_free_names,
    families_of,
    may_have_rows,
    planned_rollups,
    sent_and_read,
    server_facts,
    shown_views,
    stored_and_read,
)
from ch_sink.config import Config
from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.discovery.connector_findings import (
    change_findings,
    flattened_finding,
    order_findings,
    partition_finding,
    rounded_findings,
    source_finding,
)
from ch_sink.discovery.init_plan import other_rows, plan_init, retyped_findings, unfilled_finding
from ch_sink.discovery.look import Sampled, look_into, schema_for
from ch_sink.discovery.servers import replica_findings, servers_of
from ch_sink.discovery.statuses import progress_findings
from ch_sink.discovery.stream_key import recorded_key
from ch_sink.discovery.value_findings import computed_findings, document_findings, value_findings
from ch_sink.discovery.wiring import (
    VIEWS_LATER,
    client_of,
    key_columns,
    table_spec,
    topic_offsets,
    views_key,
)
from ch_sink.errors import AccessDenied, ChSinkError, ClickHouseError, TableNotFound
from ch_sink.model.counts import counted
from ch_sink.model.values import TopicState
from ch_sink.sources import refusal, source_for
from ch_sink.table.checks import Finding, check_table
from ch_sink.table.ddl import views_of
from ch_sink.table.evolve import computed_here, diff, refilled, unfilled
from ch_sink.table.facts import ServerFacts
from ch_sink.table.fits import type_findings
from ch_sink.table.model import TargetTable
from ch_sink.table.views import name_taken, stale, stated_keys
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import quote


def findings(config: Config) -> Iterator[Finding]:
    """Findings about a stream's topic and table. Never raises for what it finds."""
    topic: TopicState | None = None
    seen = Sampled(None, 0)
    try:
        with topic_offsets(config) as offsets:
            topic = offsets.state(config.kafka.topic)
            others = offsets.names()
            compacted = offsets.is_compacted(topic.topic)
        records = sum(topic.high[p] - low for p, low in topic.low.items())
        held = f"{counted(len(topic.low), 'partition')}, {counted(records, 'offset')}"
        yield Finding("ok", "topic", f"{topic.topic}: {held}")
        if compacted:
            yield Finding(
                "warn",
                "compaction",
                f"Kafka compacts {topic.topic} (cleanup.policy): of changes that the stream has not read yet, earlier "
                "ones of a key, and deletes after delete.retention.ms, may go without a trace",
                "Set cleanup.policy=delete on the topic, or make sure that the stream never lags behind the "
                "compaction; `ch_sink verify` shows what it missed.",
            )
        seen = look_into(config, topic, recorded=_recorded_key(config, topic))
        yield from topic_findings(seen, config)
        yield from partition_finding(seen.marks, topic.topic, others)
    except ChSinkError as error:
        yield Finding("fail", "kafka", str(error), error.hint)
    try:
        client = client_of(config)
        yield Finding("ok", "clickhouse", f"{config.clickhouse.url}, version {client.server_version}")
    except ChSinkError as error:
        yield Finding("fail", "clickhouse", str(error), error.hint)
        return
    yield from _target(config, client, seen, topic)


def _recorded_key(config: Config, topic: TopicState) -> tuple[str, ...]:
    try:
        return recorded_key(config, client_of(config), topic.topic_id)
    except ChSinkError:  # which is a finding of its own
        return ()


def topic_findings(seen: Sampled, config: Config) -> Iterator[Finding]:
    """Findings about the records of the topic, whatever the table is."""
    schema = seen.schema
    if schema is None:
        yield Finding("warn", "change events", seen.why, "The source's columns were not checked.")
    else:
        key = ", ".join(f.name or "(single value)" for f in schema.key) or "none"
        types = ", which declare no types" if schema.inferred else ""
        yield Finding("ok", "change events", f"{counted(len(schema.fields), 'column')}{types}; key: {key}")
    if seen.obstacle is not None:
        yield Finding("fail", seen.obstacle.title, seen.obstacle.reason, seen.obstacle.remedy)
    if seen.flattened:
        yield flattened_finding(seen.flattened, config)
    if seen.connector and refusal(seen.connector) is None:
        yield source_finding(seen.connector)
    for said in seen.misnamed:
        yield Finding("warn", "columns", said, "Write the name as events have it, or take it out.")
    yield from change_findings(seen.marks)


def _target(config: Config, client: Client, seen: Sampled, topic: TopicState | None) -> Iterator[Finding]:
    try:
        table = detect(client, config.clickhouse.database, config.clickhouse.table, config.policy())
    except TableNotFound as error:
        yield _to_be_created(config, client, seen) if config.create_tables else _no_table(error)
        return
    except ChSinkError as error:
        yield _no_table(error)
        return
    yield Finding("ok", "table", f"{table.qualified}, {counted(len(table.columns), 'column')}")
    schema = schema_for(seen, table)
    key = key_columns(config, schema, table)
    partitions = len(topic.low) if topic else 1
    limit, facts = config.max_offsets_per_trigger, _server_facts(client, table)
    yield from check_table(
        table,
        key,
        config.policy().changes,
        server=facts,
        source_columns=[f.name for f in schema.fields] if schema else (),
        inserts_per_batch=partitions + (limit or 0) // config.chunk_offsets,
    )
    if seen.connector and refusal(seen.connector) is None:
        yield from order_findings(seen.connector, table, config.policy())
        yield from rounded_findings(seen.connector, table, key, schema)
    try:
        yield from replica_findings(table, servers_of(config, client, table))
    except ClickHouseError as error:
        yield Finding("fail", "replicas", str(error), error.hint)
    yield from _values_kept(config, client, table)
    yield from computed_findings(client, table, {f.name for f in schema.fields} if schema else set())
    if seen.obstacle is not None:
        yield Finding("warn", "types", "not checked: no table can follow this topic as it is")
    elif seen.connector and is_document_source(source_for(seen.connector)):
        yield from document_findings(table, config.policy())
    else:
        own = {name for name, _ in config.policy().columns.add}
        types = (
            {f.name: None if schema.inferred else f.type for f in schema.fields if f.name not in own}
            if schema is not None
            else None
        )
        zone = facts.timezone if facts is not None else ""
        of_types = list(type_findings(table, types, key, config.policy().values, config.init.types(), zone))
        yield from of_types
        yield from value_findings(table, seen.literals, config.policy().values)
        if schema is not None:
            yield from _columns(config, client, table, schema, " ".join(f.remedy or "" for f in of_types))
    yield from _other_tables(config, client, views_key(config, schema, table, seen.recorded), table)
    yield from _rollups(config, client, table)
    yield from progress_findings(config, client, topic, table)
    yield from _other_rows(config, client, table, key)


def _no_table(error: ChSinkError) -> Finding:
    return Finding("fail", "table", str(error), error.hint)


def _to_be_created(config: Config, client: Client, seen: Sampled) -> Finding:
    """A table that the job itself creates (``create_tables``)."""
    place = f"{config.clickhouse.database}.{config.clickhouse.table}"
    if seen.schema is None and not seen.records:
        return Finding("ok", "table", f"{place} does not exist yet: the job creates it from the topic's first events")
    if seen.obstacle is not None:
        return Finding("warn", "table", f"{place} does not exist yet, and the job cannot create it: see above")
    try:
        plan_init(config, seen, client)
    except ChSinkError as error:
        return Finding("fail", "table", f"{place} cannot be created: {error}", error.hint)
    return Finding("ok", "table", f"{place} does not exist yet: the job creates it")


def _values_kept(config: Config, client: Client, table: TargetTable) -> Iterator[Finding]:
    """Whether this server gives back the values of risky types; those that the table has must come back."""
    used = families_of(column.type for column in table.columns if column.insertable)
    try:
        try:
            changed = stored_and_read(client, table.database, config.policy(), FAMILIES)
        except AccessDenied as error:
            yield Finding(
                "warn",
                "round trip",
                f"the round trip of values was not tested: the user may not create a table for it: {error}",
                f"GRANT CREATE TABLE, DROP TABLE, SELECT, INSERT ON {quote(table.database)}.* "
                f"TO {quote(config.clickhouse.username)};",
            )
            changed = sent_and_read(client, sorted(used))
    except ChSinkError as error:
        yield Finding("fail", "round trip", str(error), error.hint)
        return
    for one in changed:
        columns = [c.name for c in table.columns if c.insertable and one.family in families_of([c.type])]
        if columns:
            yield Finding(
                "fail",
                "round trip",
                f"column {', '.join(columns)}: {one.why}",
                "Upgrade the server, or give the column another type (docs/servers.md).",
            )
        elif not one.refused:
            yield Finding("warn", "round trip", f"no column has this type now, and none may use it: {one.why}")
    if not changed:
        yield Finding("ok", "round trip", f"values of {len(FAMILIES)} risky types are returned as sent")


def _server_facts(client: Client, table: TargetTable) -> ServerFacts | None:
    try:
        return server_facts(client, table)
    except ClickHouseError:
        return None


def _columns(
    config: Config, client: Client, table: TargetTable, schema: RowSchema, said: str = ""
) -> Iterator[Finding]:
    """``said``: the statements of other findings. A column that they alter is not altered twice, into another type."""
    altered = [text for f in schema.fields if (text := f" MODIFY COLUMN {quote(f.name)} ") in said]
    existing = {c.name for c in table.columns}
    lacking = [f.name for f in schema.fields if f.name not in existing]
    if computed := computed_here(table, schema):
        yield Finding(
            "warn",
            "columns",
            f"the table computes {', '.join(computed)} (MATERIALIZED or ALIAS): the source's values are not stored",
            f"To say that this is meant:\ncolumns:\n  exclude: [{', '.join(computed)}]",
        )
    try:
        empty = not may_have_rows(client, table)
        key = key_columns(config, schema, table)
        alone = table.finds_by_all(key)
        retyped = {} if empty else retyped_findings(table, schema, alone=alone)
        yield from retyped.values()
        statements = diff(table, schema, table_spec(config), keep=retyped, empty=empty)
        remedy = "\n".join(f"{one};" for one in statements if not any(text in one for text in altered))
    except ChSinkError as error:
        yield Finding("warn", "columns", str(error), error.hint)
        return
    if "MODIFY COLUMN" in remedy:
        remedy = "\n".join((remedy, *refilled(table, key)))
    unknown = {} if empty else unfilled(table, schema, table_spec(config))
    if unknown and (config.evolve != "ignore" or alone):
        yield unfilled_finding(config, table, unknown, alone=alone)
        lacking = [name for name in lacking if name not in unknown]
    if lacking and config.evolve == "fail":
        yield Finding("fail", "columns", f"the table lacks {', '.join(lacking)} (evolve: fail)", remedy)
    elif lacking and config.evolve == "ignore":
        said = f"the table lacks {', '.join(lacking)} (evolve: ignore): rows that are stored have no value there"
        yield Finding(
            "warn",
            "columns",
            said,
            "To store it, set evolve: add_columns, and fill the table again with `ch_sink resync CONFIG --apply`.",
        )
    elif lacking:
        yield Finding("warn", "columns", f"the table lacks {', '.join(lacking)} (evolve: {config.evolve})", remedy)
    elif unknown:
        return
    elif "COLUMN" in remedy:
        yield Finding("warn", "columns", "init would change these columns to what the source declares", remedy)
    elif not computed:
        yield Finding("ok", "columns", "the table has every column of the source")


def _other_tables(config: Config, client: Client, key: tuple[str, ...] | None, table: TargetTable) -> Iterator[Finding]:
    """The sink's own tables and the views."""
    names = config.state_tables
    wanted = {
        "ledger": names.ledger,
        "dead letters": names.dead_letters,
        "hand-over": names.handover,
        "pending": names.pending,
        "column types": names.columns,
    }
    found = client.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND name IN {names:Array(String)}",
        {"database": config.state_database, "names": [*wanted.values()]},
        doing="look for the sink's tables",
    )
    existing = {str(row["name"]) for row in found}
    for title, name in wanted.items():
        where = f"{quote(config.state_database)}.{quote(name)}"
        if name in existing:
            yield Finding("ok", title, where)
        else:
            # Without this table the column's comment and type decide: a warning is enough.
            level: Literal["warn", "fail"] = "warn" if title == "column types" else "fail"
            yield Finding(level, title, f"{where} does not exist", "ch_sink init CONFIG --apply")
    yield from _views(config, client, key, table)


def _views(config: Config, client: Client, key: tuple[str, ...] | None, table: TargetTable) -> Iterator[Finding]:
    """Views that lack, wrap or hide values, or that somebody else has made. ``key``: see `views_key`."""
    cluster = table_spec(config).cluster
    shown = shown_views(client, table.database, [view.name for view in views_of(table, (), cluster)])
    stated = stated_keys(shown.values(), key or ())
    wanted = views_of(table, stated[0] if stated and key != () else key or (), cluster)
    if taken := name_taken(shown, [view.name for view in wanted]):
        yield Finding("fail", "view", str(taken), taken.hint)
        return
    for view in wanted:
        where, found = f"{quote(table.database)}.{quote(view.name)}", shown.get(view.name)
        if found is None:
            unknown = key is None and not stated
            yield Finding("warn", "view", f"{where} does not exist", VIEWS_LATER if unknown else f"{view.sql};")
        elif not found.kept:
            said = f"{where} is not one that ch_sink keeps: it stays as it is when the table gets other columns"
            yield Finding("warn", "view", said, f"{view.sql};")
        elif key is not None and found.key is not None and {*found.key} != {*key}:
            said = f"{where} shows rows by the key {', '.join(found.key) or 'none'}, the topic's is "
            yield Finding("fail", "view", said + (", ".join(key) or "none"), "ch_sink init CONFIG --apply")
        elif difference := stale(found, table, view.sql):
            said = f"{where} no longer fits the table: {difference}. The job recreates it when it opens the stream"
            yield Finding("warn", "view", said, f"{view.sql};")
        else:
            yield Finding("ok", "view", where)


def _rollups(config: Config, client: Client, table: TargetTable) -> Iterator[Finding]:
    if not config.rollups:
        return
    try:
        rollups = planned_rollups(client, table, config.rollup_choices(), config.policy().columns)
        comments = expect_free_names(client, rollups)
    except ChSinkError as error:
        yield Finding("fail", "rollups", str(error), error.hint)
        return
    for rollup in rollups:
        filled = comments.get(rollup.choice.name, "").startswith(rollup.comment())
        yield Finding(
            "ok", "rollups", f"{rollup.choice.name}" + ("" if filled else ": the job fills it from the table")
        )


def _other_rows(config: Config, client: Client, table: TargetTable, key: tuple[str, ...]) -> Iterator[Finding]:
    try:
        found = other_rows(config, client, table, key)
    except ClickHouseError as error:
        yield Finding("fail", "versions", str(error), error.hint)
    else:
        yield from [found] if found is not None else []
