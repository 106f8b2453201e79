"""Compares an existing table with the source's row type: the ALTERs that let it hold every source column."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ch_sink.model.change import UnknownColumn
from ch_sink.table.ddl import TABLE_COMMENT, Statement, made_engine, note_types, row_policies, state_tables, views_of
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable
from ch_sink.table.spec import (
    DEDUP_SECONDS,
    ColumnPlan,
    EngineChoice,
    TableSpec,
    key_names,
    plan_columns,
    system_plans,
)
from ch_sink.types.chtype import widened
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema, SourceType
from ch_sink.types.sql import literal, quote

REFILL_ALONE = "fill the table again with `ch_sink resync CONFIG --against topic --apply`"
"""The step that gives rows without a key, which are found by all of their values, the altered columns' values."""

RETYPED = "fill the table again with `ch_sink resync CONFIG --against source --apply`"
"""The step for a column that does not hold the source's present type, where rows have a key."""
ANEW_ALONE = "load a new snapshot into a new table"
"""The step where they have none."""


def refilled(table: TargetTable, key: Collection[str]) -> list[str]:
    """The steps for an operator after an ALTER of columns."""
    return [f"If it has rows, {REFILL_ALONE} then."] if table.finds_by_all(key) else []


def computed_here(existing: TargetTable, source: RowSchema | None) -> tuple[str, ...]:
    """The source's columns of which the table has an own value, MATERIALIZED or ALIAS: the source's is not stored."""
    fields = source.fields if source is not None else ()
    return tuple(f.name for f in fields if (c := existing.column(f.name)) is not None and not c.insertable)


def diff(
    existing: TargetTable, wanted: RowSchema, spec: TableSpec, *, keep: Collection[str] = (), empty: bool = False
) -> list[str]:
    """ALTER statements that add what the table lacks for the source; empty if nothing is missing.

    Adds columns, widens types within a family, makes columns Nullable that the source declares so, updates the
    source types that the sink noted itself, completes an append table's system columns, and widens the
    deduplication window. Never drops or narrows a column, and never touches the sorting key or a user's comment. If
    the events declare no types, existing columns stay as they are. Columns of `unfilled` are left out. A second run
    finds nothing to do.

    ``keep``: existing columns that stay as they are, too. ``empty``: the table has no rows.
    """
    plans = _plans(existing, wanted, replace(spec, order_by=(), partition_by=""), empty=empty)
    actions: list[str] = []
    columns = {c.name for c in existing.columns}
    previous = ""
    for plan in plans:
        if plan.system:
            continue
        if existing.column(plan.name) is None:
            actions.append(addition(plan, previous, columns))
        elif not wanted.inferred and plan.name not in keep:
            actions += _changes(existing, plan)
        previous = plan.name
        columns.add(previous)
    return alter(existing, [*actions, *_own_actions(existing, spec)], spec.cluster)


def _plans(existing: TargetTable, wanted: RowSchema, spec: TableSpec, *, empty: bool) -> list[ColumnPlan]:
    """The columns for an existing table, without those that it must not get."""
    plans = plan_columns(wanted, replace(_spec_of(existing, spec), allow_nullable_key=True))
    without = {} if empty else unfilled(existing, wanted, spec)
    return [plan for plan in plans if plan.name not in without]


def filled(source: SourceType, default: str | None) -> bool:
    """Whether it is known what rows have in a new column that were at the source before.

    ``default``: the column's DEFAULT, if it has one.
    """
    return (bool(default) and source.default_is != "unstated") or (source.optional and source.default is None)


def unfilled(existing: TargetTable, wanted: RowSchema, spec: TableSpec) -> dict[str, str]:
    """The new columns, with their types, of which that is not known, so that stored rows would get other values.

    Where events declare no types, only rows without a key are in question: they are found by all of their values.
    Without ``spec.added_fields``: a stream with rows that is asked for more of these stops, to be filled again.
    """
    alone = existing.engine.family is Family.MERGE_TREE and not key_names(wanted, spec)
    if wanted.inferred and not alone:
        return {}
    plans = {plan.name: plan for plan in plan_columns(wanted, replace(_spec_of(existing, spec), order_by=()))}
    return {
        field.name: plans[field.name].type
        for field in wanted.fields
        if field.name in plans and existing.column(field.name) is None and field.name not in spec.added_fields
        if wanted.inferred
        or not filled(field.type, plans[field.name].default)
        or (alone and field.type.default_is == "doubtful")
    }


FILL_COLUMN = "or, with a section source, let `ch_sink resync CONFIG --apply` add and fill it"
"""The other way to give stored rows the values of a new column; not for rows without a key."""


def adding_by_hand(table: TargetTable, columns: Mapping[str, str]) -> list[str]:
    """Statements that add these columns with a value that only the user knows. ``columns``: with their types."""
    return alter(table, [f"ADD COLUMN {quote(name)} {kind} DEFAULT …" for name, kind in columns.items()])


def not_found_again(table: TargetTable, column: Column) -> tuple[str, list[str]]:
    """Why a table without a key cannot have this column of `TargetTable.shown_anew`, and what helps."""
    why = (
        f"rows have no key and are found by all of their values, and the events do not state {column.name!r}, which is "
        f"DEFAULT {column.default_expression}"
    )
    kind = f"{column.type} MATERIALIZED {column.default_expression}"
    return why, alter(table, [f"MODIFY COLUMN {quote(column.name)} {kind}"])


def choice_of(existing: TargetTable, spec: TableSpec) -> EngineChoice:
    """The kind of the existing table, whatever ``init`` would create."""
    family = existing.engine.family
    if family is Family.REPLACING:
        return EngineChoice.REPLACING if existing.engine.is_deleted_column else EngineChoice.SIGN_REPLACING
    return next((choice for choice in EngineChoice if choice.family is family), spec.engine)


def _spec_of(existing: TargetTable, spec: TableSpec) -> TableSpec:
    """The specification with the existing table's engine and its server's range of dates."""
    return replace(spec, engine=choice_of(existing, spec), types=replace(spec.types, years=existing.years))


def addition(plan: ColumnPlan, previous: str | None, columns: Collection[str]) -> str:
    """``previous``: the source's column before it, empty for the first, None if unknown; ``columns``: the table's."""
    place = ""
    if previous == "":
        place = " FIRST"
    elif previous is not None and previous in columns:
        place = f" AFTER {quote(previous)}"
    return f"ADD COLUMN IF NOT EXISTS {plan.sql}{place}"


def _changes(existing: TargetTable, plan: ColumnPlan) -> Iterable[str]:
    """The changes that an existing column needs to take every value of the source's type."""
    column = existing.column(plan.name)
    if column is None or not column.insertable:
        return
    placed = plan.name in existing.place_columns
    wider = widened(column.type, plan.type, may_be_nullable=not placed)
    if wider is not None and not placed:
        yield f"MODIFY COLUMN {quote(plan.name)} {wider}"
    comment = plan.comment or f"debezium: {plan.note}"
    stated = SourceType.from_comment(comment)
    # Only comments that the sink itself wrote are updated: by a stream that altered the table, or by an old version.
    commented = SourceType.from_comment(column.comment)
    known = column.stated if plan.comment else commented if existing.comment == TABLE_COMMENT else None
    if stated is not None and known is not None and known != stated:
        yield f"COMMENT COLUMN {quote(plan.name)} {literal(restated(column, comment))}"


def restated(column: Column, stated: str) -> str:
    """The column's comment with this source type in the place of the one that it may state."""
    known = SourceType.from_comment(column.comment) is not None
    own_text = column.comment.rpartition("debezium: ")[0] if known else f"{column.comment} "
    return own_text.lstrip() + stated


def window_setting(table: TargetTable) -> str:
    """Name of the setting that holds the table's window of insert deduplication."""
    replicated = table.engine.replicated or table.engine.shared
    return "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"


def _own_actions(existing: TargetTable, spec: TableSpec) -> Iterable[str]:
    """The changes that a table needs whatever its source has: a history's system columns, and the window."""
    if existing.engine.family is Family.MERGE_TREE:
        for plan in system_plans(replace(spec, engine=EngineChoice.APPEND)):
            # Nobody knows the times of the rows that are there.
            if existing.column(plan.name) is None and plan.name != SOURCE_TIME:
                yield f"ADD COLUMN IF NOT EXISTS {plan.sql}"
    setting = window_setting(existing)
    if existing.dedup_window < spec.dedup_window:
        yield f"MODIFY SETTING {setting} = {spec.dedup_window}"
    if setting == "replicated_deduplication_window" and 0 < existing.dedup_window_seconds < DEDUP_SECONDS:
        yield f"MODIFY SETTING {setting}_seconds = {DEDUP_SECONDS}"


def alter(table: TargetTable, actions: Iterable[str], cluster: str | None = None) -> list[str]:
    """One ALTER TABLE per action. A Distributed table's local tables come first, and column changes follow on itself.

    ``cluster``: the cluster on which ``init`` created the table, so that it is altered there.
    """
    statements: list[str] = []
    everywhere = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    for action in actions:
        if table.distributed and table.local is not None:
            behind = f" ON CLUSTER {quote(table.cluster)}" if table.cluster else ""
            statements.append(f"ALTER TABLE {quote(table.local[0])}.{quote(table.local[1])}{behind} {action}")
            if action.startswith("MODIFY SETTING"):
                continue
        statements.append(f"ALTER TABLE {table.qualified}{everywhere} {action}")
    return statements


def offered(table: TargetTable, columns: Sequence[UnknownColumn], cluster: str | None = None) -> list[str]:
    """Statements that give the table these columns; repeating them changes nothing.

    Columns follow their neighbours in the source, with the source's type in the comment, as ``init`` creates them.
    """
    actions: list[str] = []
    existing = {c.name for c in table.columns}
    for column in columns:
        if column.clickhouse_type is not None:
            comment = "" if column.inferred else column.comment
            plan = ColumnPlan(column.name, column.clickhouse_type, column.default or "", comment=comment)
            if table.column(column.name) is None:
                actions.append(addition(plan, column.after, existing))
            else:
                actions += _changes(table, plan)
            existing.add(column.name)
    return alter(table, actions, cluster)


def existing_statements(
    existing: TargetTable, schema: RowSchema, spec: TableSpec, *, keep: Collection[str] = (), empty: bool = False
) -> list[Statement]:
    """The statements of ``init`` for an existing table: the sink's own tables, the diff, and the views.

    ``keep``: columns that stay as they are, with what is noted of them; ``empty``: it has no rows.
    """
    statements = [*state_tables(spec), *altering(existing, diff(existing, schema, spec, keep=keep, empty=empty))]
    plans = _plans(existing, schema, spec, empty=empty)
    shown = _with_added(existing, plans)
    statements += views_of(shown, key_names(schema, spec), spec.cluster)
    notes = note_types(spec, _new_notes(existing, [p for p in plans if p.name not in keep]))
    return [*statements, *notes, *row_policies(existing.name, existing.engine, spec)]


def _with_added(existing: TargetTable, plans: Sequence[ColumnPlan]) -> TargetTable:
    known = {c.name for c in existing.columns} | existing.system_columns
    added = [plan for plan in plans if not plan.system and plan.name not in known]
    columns = (*existing.columns, *map(as_column, added))
    return replace(
        existing, columns=columns, defaults=(*existing.defaults, *((p.name, None) for p in added if p.default))
    )


def planned_table(
    existing: TargetTable | None, schema: RowSchema, spec: TableSpec, *, empty: bool = False
) -> TargetTable:
    """The table as it is once ``init`` has run; ``empty``: it has no rows. The values of its defaults are not known."""
    engine = made_engine(spec)
    if existing is not None:
        return _with_added(existing, _plans(existing, schema, spec, empty=empty))
    existing = TargetTable(spec.database, spec.table, engine, (), ttl=spec.ttl, dedup_window=spec.dedup_window)
    return _with_added(
        existing, plan_columns(schema, replace(spec, engine=choice_of(existing, spec), allow_nullable_key=True))
    )


def unseen_statements(existing: TargetTable, key: Sequence[str] | None, spec: TableSpec) -> list[Statement]:
    """The statements of ``init`` for a table whose topic shows nothing yet: the sink's own tables, the views.

    ``key``: the topic's, with which the views are made; None leaves them out.
    """
    statements = [*state_tables(spec), *altering(existing, alter(existing, _own_actions(existing, spec), spec.cluster))]
    statements += views_of(existing, key, spec.cluster) if key is not None else []
    return [*statements, *row_policies(existing.name, existing.engine, spec)]


def _new_notes(existing: TargetTable, plans: Iterable[ColumnPlan]) -> dict[str, str]:
    """Source types of new columns, and of those of a table that ``init`` created, if nothing states them yet."""
    notes = {}
    for plan in plans:
        column = existing.column(plan.name)
        if column is not None:
            stated = column.note == plan.note or SourceType.from_comment(column.comment) is not None
            if stated or existing.comment != TABLE_COMMENT:
                continue
        if plan.note:
            notes[plan.name] = plan.note
    return notes


def altering(table: TargetTable, statements: Iterable[str]) -> list[Statement]:
    """ALTER statements of a table, as ``init`` runs them."""
    return [Statement("alter", table.database, table.name, text) for text in statements]


def as_column(plan: ColumnPlan) -> Column:
    """The column as it will be detected."""
    return Column(plan.name, plan.type, "DEFAULT" if plan.default else "", plan.default, note=plan.note)
