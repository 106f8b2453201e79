"""The plan of ``init`` for a topic, also of a job that sees it for the first time: statements and notes."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ch_sink.clickhouse import (
    Client,
    detect,
    expect_free_names,
    has_nullable_tuple,
    has_rows,
    max_version,
    may_have_rows,
    planned_rollups,
    run_statement,
    server_facts,
    without_foreign,
)
from ch_sink.config import Config
from ch_sink.decode.unknown_columns import outgrown
from ch_sink.discovery.job_topics import existing_tables
from ch_sink.discovery.look import Sampled, look_into, schema_for
from ch_sink.discovery.servers import expect_same_engine
from ch_sink.discovery.stream_key import recorded_key
from ch_sink.discovery.value_findings import refuted_comments, value_findings, without_note
from ch_sink.discovery.wiring import (
    VIEWS_LATER,
    client_of,
    key_columns,
    ledger_of,
    table_spec,
    topic_offsets,
    views_key,
)
from ch_sink.errors import REFILL, AccessDenied, ChSinkError, ClickHouseError, TableError, TableNotFound
from ch_sink.merge.resolved import version_column
from ch_sink.model.counts import capitalized
from ch_sink.order.version import layout_for
from ch_sink.table.checks import ANOTHER_TABLE, Finding, deletes_finding, expect_key
from ch_sink.table.ddl import Statement, init_statements, made_table, own_rows
from ch_sink.table.detect import maker_of, unused_mark
from ch_sink.table.evolve import (
    ANEW_ALONE,
    FILL_COLUMN,
    REFILL_ALONE,
    RETYPED,
    adding_by_hand,
    alter,
    altering,
    diff,
    existing_statements,
    planned_table,
    unfilled,
    unseen_statements,
)
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.table.views import LIFE
from ch_sink.types.connect import RowSchema


@dataclass(frozen=True, slots=True)
class InitPlan:
    """One stream's statements, in the order in which they run."""

    table: str
    statements: tuple[Statement, ...]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Problems of the settings that the sampled values and the table's rows show."""


def plan_init(config: Config, seen: Sampled, client: Client | None) -> InitPlan:
    """The statements for the topic that ``seen`` describes; without a client, those for a table that does not exist.

    Raises ChSinkError for a topic that cannot be served or whose columns are not known, TableError (also for row
    policies on a server that applies them before FINAL), ClickHouseError.
    """
    if seen.obstacle is not None:
        raise ChSinkError(seen.obstacle.reason, hint=seen.obstacle.remedy)
    spec = table_spec(config)
    if spec.row_policy_roles and client is not None:
        _refuse_policies_before_final(client, spec)
    notes = [*seen.misnamed]
    existing: TargetTable | None = None
    if client is not None and (seen.schema is not None or not seen.records):
        spec = replace(spec, types=replace(spec.types, nullable_tuple=has_nullable_tuple(client)))
        with suppress(TableNotFound):
            existing = detect(client, config.clickhouse.database, config.clickhouse.table, config.policy())
            expect_same_engine(config, client, existing)
            expect_key(existing, key_columns(config, schema_for(seen, existing), existing))
        if existing is None:
            spec = replace(spec, types=replace(spec.types, years=server_facts(client).years))
    if seen.schema is None:
        if existing is None:
            raise ChSinkError(
                f"the columns of the table are unknown: {seen.why}",
                hint="Run init again once the topic holds change events, or create the table by hand.",
            ).settled_by("skip: true")
        plan = _unseen(config, seen, existing, spec)
        own = _own_views(client, plan.statements, notes)
        findings = _other_rows(config, client, existing, None)
        return replace(plan, statements=tuple(own), notes=(*plan.notes, *notes), findings=findings)
    if existing is not None:
        repairs = [without_note(column) for column in refuted_comments(existing, seen.literals, config.policy().values)]
        schema = schema_for(seen, existing) or seen.schema
        assert client is not None
        empty = not may_have_rows(client, existing)
        alone = existing.finds_by_all(key_columns(config, schema, existing))
        stays = alone and not empty
        retyped = {} if empty else retyped_findings(existing, schema, alone=alone)
        keep = [c.name for c in existing.columns] if stays else retyped
        statements = [
            *altering(existing, alter(existing, repairs, spec.cluster)),
            *existing_statements(existing, schema, spec, keep=keep, empty=empty),
        ]
        statements = _own_views(client, statements, notes)
        names = {column.name for column in existing.columns}
        added = [field.name for field in seen.schema.fields if field.name not in names]
        if added and seen.schema.inferred and seen.connector != "mongodb":
            notes.append(_guessed(seen, f"of the added columns ({', '.join(added)})"))
        statements += _rollups(config, client, planned_table(existing, schema, spec, empty=empty), notes)
        notes += [*_lacking_views(existing), *(_kept(existing, schema, spec) if stays else ())]
        found = [f for f in value_findings(existing, seen.literals, config.policy().values) if f.level != "ok"]
        found += [*_other_rows(config, client, existing, schema), *retyped.values()]
        if not empty and (lacking := unfilled(existing, schema, spec)):
            found.append(unfilled_finding(config, existing, lacking, alone=alone))
        return InitPlan(existing.name, tuple(statements), tuple(notes), tuple(found))
    keyless = not seen.schema.key and not config.key_columns
    if keyless and config.start == "latest":
        raise TableError(_UNCOUNTED, hint=_FROM_START)
    if keyless and config.engine is None:
        notes.append("the topic has no keys: the table keeps every change, and the view shows every copy of a row")
        spec = replace(spec, engine=EngineChoice.APPEND)
    if seen.schema.inferred and seen.connector != "mongodb":
        notes.append(_guessed(seen, "of the new columns"))
    rollups = _rollups(config, client, planned_table(None, seen.schema, spec), notes)
    notes += _lacking_views(made_table(seen.schema, spec))
    statements = _own_views(client, init_statements(seen.schema, spec), notes)
    return InitPlan(spec.table, (*statements, *rollups), tuple(notes))


def retyped_findings(table: TargetTable, schema: RowSchema, *, alone: bool) -> dict[str, Finding]:
    """The columns that do not hold what the source sends now, nor would after an ALTER: ``init`` leaves them alone.

    ``alone``: rows have no key.
    """
    step = capitalized(f"{ANEW_ALONE if alone else RETYPED}.")
    found = {}
    for field in schema.fields:
        column = table.column(field.name)
        if column is None or not column.insertable or column.stated is None:
            continue
        changed = outgrown(table, column, field.type)
        if changed is not None and changed.change == "type":
            was, now = (of.to_note().partition(" {")[0] for of in (column.stated, field.type))
            said = f"{field.name} is {now} in the source and was {was}: {column.type} does not hold these values as "
            found[field.name] = Finding("fail", "columns", f"{said}they are", step)
    return found


def unfilled_finding(config: Config, table: TargetTable, lacking: Mapping[str, str], *, alone: bool) -> Finding:
    """New columns, with their types, whose values in stored rows are not known. ``alone``: rows have no key."""
    by_hand = "\n".join(f"{text};" for text in adding_by_hand(table, lacking))
    return Finding(
        "fail",
        "columns",
        f"the table lacks {', '.join(lacking)}, and events do not state what stored rows have there at the source",
        by_hand if alone or config.policy().columns.source else f"{by_hand}\n{FILL_COLUMN}.",
    )


def _kept(existing: TargetTable, schema: RowSchema, spec: TableSpec) -> Iterator[str]:
    """Notes on the changes of columns that are left to the operator."""
    kept = diff(existing, schema, spec, keep=[c.name for c in existing.columns])
    if left := [text for text in diff(existing, schema, spec) if text not in kept]:
        yield (
            f"the rows of {existing.qualified} have no key and are found by all of their values, so its columns stay "
            f"as they are. To change them, stop the stream, run {'; '.join(left)}, and {REFILL_ALONE}"
        )


def _unseen(config: Config, seen: Sampled, existing: TargetTable, spec: TableSpec) -> InitPlan:
    """The plan for a table of whose topic the records show nothing."""
    key = views_key(config, None, existing, seen.recorded)
    note = f"{seen.why}: whether {existing.qualified} has all columns of the source is not known"
    if key is None:
        note += f", nor is its key, so the views that show rows by it are left out. {VIEWS_LATER}"
    else:
        note += (
            f"; its key is taken to be {', '.join(key) or 'none'}. Run init again once the topic holds change events"
        )
    return InitPlan(existing.name, tuple(unseen_statements(existing, key, spec)), (note,))


def _own_views(client: Client | None, statements: Sequence[Statement], notes: list[str]) -> list[Statement]:
    """The statements without those that would replace a user's own view."""
    if client is None:
        return list(statements)
    own, foreign = without_foreign(client, statements)
    notes += [f"view {name} is not one that ch_sink keeps and is left alone; drop it to get init's" for name in foreign]
    return own


def _lacking_views(table: TargetTable) -> Iterator[str]:
    """Why a history has no views at a time."""
    if table.engine.family is not Family.MERGE_TREE or table.column("_version") is None:
        return
    if table.column(SOURCE_TIME) is None:
        yield (
            f"{table.qualified} has no column {SOURCE_TIME}, and the times of its rows are not known: it gets no views "
            f"{table.name}_at and {table.name}_history. `ch_sink resync CONFIG` fills a table that has them"
        )
    elif own := [column.name for column in table.shown_columns if column.name in LIFE]:
        yield f"{table.name}_history is left out: the source has a column {own[0]} of its own"


def _other_rows(
    config: Config, client: Client | None, existing: TargetTable, schema: RowSchema | None
) -> tuple[Finding, ...]:
    """The steps that a table needs if another writer has left it."""
    found = [deletes_finding(existing, config.policy().changes)] if unused_mark(existing) else []
    if client is not None:
        with suppress(AccessDenied):  # who creates tables need not be allowed to read them
            found.append(other_rows(config, client, existing, key_columns(config, schema, existing)))
    return tuple(finding for finding in found if finding is not None and finding.level != "ok")


def _rollups(config: Config, client: Client | None, table: TargetTable, notes: list[str]) -> list[Statement]:
    """The statements for the rollups. Raises TableError for one that the table or the server refuses."""
    choices = config.rollup_choices()
    if choices and client is None:
        notes.append("rollups are skipped: only the server knows the types of their expressions")
    if not choices or client is None:
        return []
    rollups = planned_rollups(client, table, choices, config.policy().columns)
    comments = expect_free_names(client, rollups)
    statements = []
    for rollup in rollups:
        name = rollup.choice.name
        if name not in comments:
            statements.append(Statement("table", rollup.database, name, rollup.create()))
            statements.append(Statement("view", rollup.database, rollup.view, rollup.create_view()))
        if not comments.get(name, "").startswith(rollup.comment()):
            # Only the owner of the stream may replace it: what another job adds meanwhile would be lost.
            notes.append(f"rollup {name}: the job fills it from {table.qualified} when it opens the stream")
    return statements


def _guessed(seen: Sampled, columns: str) -> str:
    return (
        f"the events declare no types: the types {columns} are guessed from the values of {seen.records} records. "
        "Decimals, dates and binary values look like text or integers there: correct their types before you apply the "
        "statements, or create the columns by hand and run init again (docs/types.md)"
    )


def _refuse_policies_before_final(client: Client, spec: TableSpec) -> None:
    facts = server_facts(client)
    if not facts.policies_after_final:
        raise TableError(
            f"a row policy for {', '.join(spec.row_policy_roles)}: this server ({facts.version}) applies row policies "
            f"before FINAL, so its readers would see deleted rows again, also in {spec.table}_current",
            hint=f"Leave out init.row_policy_roles, and grant readers {spec.table}_current instead of "
            "the table. Or, on 25.12 and later, set apply_row_policy_after_final = 1 in their profile and in yours.",
        )


log = logging.getLogger("ch_sink")


def create_tables(config: Config) -> tuple[str, ...]:
    """Create the stream's table, view and the sink's own tables, unless they exist; what was created, in order.

    Raises ChSinkError: the topic is not a change stream, the server refuses or a server does not answer.
    """
    client = client_of(config)
    if not lacks_tables(client, config):
        return ()
    with topic_offsets(config) as offsets:
        topic = offsets.state(config.kafka.topic)
        recorded = recorded_key(config, client, topic.topic_id)
        seen = look_into(config, topic, server_facts(client).years, recorded)
    try:
        plan = plan_init(config, seen, client)
    except ChSinkError as error:
        raise _cannot(config, error) from None
    try:
        made = [s.title for s in plan.statements if run_statement(client, s) in ("created", "changed")]
    except ClickHouseError as error:
        raise error if error.temporary else _refused(config, error) from None
    place = f"{config.clickhouse.database}.{config.clickhouse.table}"
    log.warning("%s: created %s", place, ", ".join(made), extra={"stream": config.stream_name})
    for note in plan.notes:
        log.warning("%s: %s", place, note, extra={"stream": config.stream_name})
    return tuple(made)


def lacks_tables(client: Client, config: Config) -> bool:
    """Whether the stream's table or one of the sink's own does not exist. Raises ClickHouseError."""
    own = config.state_tables
    names = {config.clickhouse.table, own.ledger, own.dead_letters, own.handover, own.pending}
    return bool(names - existing_tables(client, config.clickhouse.database, names))


def _refused(config: Config, error: ClickHouseError) -> ClickHouseError:
    """The error, from what to do about a table that the server does not make."""
    topic = config.kafka.topic
    return error.about(
        f"no table can be created for topic {topic}",
        hint=f"{error.hint or 'Correct the keys under `init` for this topic.'} Or create the table by hand, starting "
        f"from what `ch_sink init CONFIG --only '{re.escape(topic)}'` prints.",
    )


def _cannot(config: Config, error: ChSinkError) -> ChSinkError:
    """The error, from what to do about a topic that no table can follow."""
    if isinstance(error, ClickHouseError):
        return error
    topic = config.kafka.topic
    if not error.setting:
        skipped = f"{error.hint or ''} If the topic does not carry change events, skip it.".strip()
        refused = error.about(f"no table can be created for topic {topic}", hint=skipped).settled_by("skip: true")
    else:
        refused = error.about(f"no table can be created for topic {topic}")
    return refused.of_one_topic(topic)


_UNCOUNTED = (
    "the topic has no keys, and `start: latest` leaves out what it holds: a table without a key counts its rows, and "
    "the delete of a row that was never counted would hide the next equal one"
)
_FROM_START = (
    "Leave `start` out (or set `start: earliest` for this topic), and let the topic begin with the connector's "
    "snapshot; or set key_columns, if some columns are unique in the source."
)


def other_rows(config: Config, client: Client, table: TargetTable, key: tuple[str, ...]) -> Finding | None:
    """The step that rows of another writer need before the stream goes on; also for rows that it knows from its topic.

    None if the table has no such rows, or the stream has begun: its own rows are there, too. Raises ClickHouseError.
    """
    appends = table.engine.family is Family.MERGE_TREE
    if appends and not key and config.start == "latest" and not _has_begun(config, client):
        return Finding("fail", "start", _UNCOUNTED, _FROM_START)
    unordered = _unordered(config, client, table, key)
    return unordered or _stored_twice(config, client, table) or _versions(config, client, table)


def _versions(config: Config, client: Client, table: TargetTable) -> Finding | None:
    """Whether the stream's versions can begin above those of the rows."""
    name = version_column(table)
    column = table.column(name) if name else None
    if column is None:
        return None
    try:
        layout = layout_for(column.type)
    except TableError:  # which is a finding of its own
        return None
    newest = max_version(client, table, empty=-1, condition=own_rows(table, config.policy().columns))
    unordered = newest == 0 and table.engine.family is Family.MERGE_TREE
    if newest < 0 or unordered or _has_begun(config, client):
        return None
    maker = maker_of(table)
    held = f"the table holds versions up to {newest}, but the ledger has no entry of this stream: "
    held += f"{maker.name if maker is not None else 'another writer'} produced them"
    epoch = layout.epoch_of(newest)
    if epoch is None:
        why = f"{held}, and its rows win over changes of an earlier time"
        return Finding(
            "warn", "versions", why, f"If they are times of the source, change nothing. Otherwise: {REFILL}."
        )
    if epoch >= layout.epochs:
        return Finding("fail", "versions", f"{held}, and a {column.type} has no room above them", ANOTHER_TABLE)
    return Finding("ok", "versions", f"{held}; those of the stream begin above them")


def _unordered(config: Config, client: Client, table: TargetTable, key: tuple[str, ...]) -> Finding | None:
    """Whether nothing says which of the rows of a key is the newest."""
    if table.engine.family is not Family.MERGE_TREE or not key or _has_begun(config, client):
        return None
    if max_version(client, table) or not has_rows(client, table, own_rows(table, config.policy().columns)):
        return None
    return Finding(
        "fail",
        "versions",
        "the table has rows without versions, and the ledger has no entry of this stream: nothing says which row of a "
        "key is the newest",
        ANOTHER_TABLE,
    )


def _stored_twice(config: Config, client: Client, table: TargetTable) -> Finding | None:
    """Whether a history has rows whose changes the stream may read again."""
    if table.engine.family is not Family.MERGE_TREE or config.start == "latest" or _has_begun(config, client):
        return None
    if not has_rows(client, table, own_rows(table, config.policy().columns)):
        return None
    return Finding(
        "fail",
        "versions",
        "the table has rows, and the ledger has no entry of this stream: to read the topic from its start would store "
        "changes twice that are there",
        ANOTHER_TABLE,
    )


def _has_begun(config: Config, client: Client) -> bool:
    try:
        return bool(ledger_of(config, client).topic_ids())
    except ChSinkError:  # there is no ledger yet
        return False
