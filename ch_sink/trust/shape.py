"""The shape that a file states for a table, and what it changes of the table that is there.

A table may be made by hand, and its file says nothing of its engine then. So the shape is that of the live table, with
what the file *states* in its place: ``engine``, ``init.order_by``, ``init.partition_by``, ``init.ttl``, the new names
of ``columns.rename``, the columns of ``columns.add``, and columns of the source that the table lacks. Columns whose
type has changed at the source get the present one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ch_sink.clickhouse import Client
from ch_sink.decode.unknown_columns import outgrown
from ch_sink.errors import StreamFailed
from ch_sink.table.ddl import Statement, listed, made_engine, note_types, row_policies, views_of
from ch_sink.table.engine_full import EngineClause, parse_engine, settings_sql
from ch_sink.table.evolve import addition, as_column, choice_of, restated
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup_plan import expect_rollups
from ch_sink.table.spec import ColumnPlan, EngineChoice, TableSpec, plan_columns, system_plans
from ch_sink.trust.subject import Subject
from ch_sink.types.chtype import parse_type, widened
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType
from ch_sink.types.sql import columns_in, key_expressions, literal, quote, split_commas, string_value


@dataclass(frozen=True, slots=True)
class Wanted:
    """The shape of a table as its file states it."""

    spec: TableSpec
    stated: frozenset[str]
    """The keys of the section ``init`` that the file has; the spec's other values are defaults."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Another shape for a live table."""

    table: TargetTable
    """The live table as it will be."""
    engine: str
    """The engine clause, with a replicated one's path as it was."""
    actions: tuple[str, ...]
    """ALTERs that make the live table's columns the new ones."""
    notes: tuple[tuple[str, str], ...]
    """Source types of added and changed columns."""
    changes: tuple[str, ...]
    """The changes of the shape, in words."""
    wanted: Wanted

    def has_other_columns(self, live: TargetTable) -> bool:
        """Whether it has other columns than the live table, or columns of another type, besides the sink's own."""
        mine, theirs = (
            {(c.name, c.type) for c in t.columns if c.name not in t.system_columns} for t in (self.table, live)
        )
        return mine != theirs

    def after(self, made: TargetTable, key: Sequence[str]) -> list[Statement]:
        """Statements to run after the exchange: views, row policies and notes of the new table."""
        spec = self.wanted.spec
        return [
            *views_of(made, key, spec.cluster),
            *row_policies(made.name, made.engine, spec),
            *note_types(spec, dict(self.notes)),
        ]


def shape_of(subject: Subject, clause: EngineClause, wanted: Wanted) -> Shape | None:
    """The shape that the file states; None if the live table, which has this engine clause, has it.

    Raises StreamFailed if the live table's rows cannot be stored in that shape, TableError if its rollups cannot be.
    """
    wanted = replace(wanted, spec=_as_the_server_writes_it(subject.client, wanted.spec))
    live, spec, stated = subject.table, wanted.spec, wanted.stated
    choice = choice_of(live, spec)
    other_engine = "engine" in stated and spec.engine is not choice
    if other_engine:
        _expect_same_versions(live)
        choice = spec.engine
    order = _order(subject, choice, wanted, other_engine=other_engine)
    parted = "partition_by" in stated and _bare(spec.partition_by) != _bare(clause.partition_by)
    aged = "ttl" in stated and _bare(spec.ttl) != _bare(live.ttl)
    plans = _added(subject, choice, spec)
    gone = _gone(subject, choice, other_engine=other_engine)
    retyped = _retyped(subject, choice, spec)
    kept = [retyped.get(c.name, c) for c in live.columns if c.name not in gone]
    engine = replace(made_engine(replace(spec, engine=choice)), name=live.engine.name) if other_engine else live.engine
    planned = replace(
        live,
        engine=engine,
        columns=(*kept, *map(as_column, plans)),
        sorting_key=tuple(key_expressions(", ".join(order))) if order else live.sorting_key,
        partition_key=spec.partition_by if parted else live.partition_key,
        ttl=spec.ttl if aged else live.ttl,
    )
    changes = differences_of_shape(planned, live)
    if not other_engine and (own := [plan.name for plan in plans if plan.system]):
        changes = (*changes, f"columns added: {', '.join(own)}")
    changes = (*changes, *_meanings(live, retyped.values()))
    if not changes:
        return None
    _expect_one_key(live, clause)
    expect_rollups(planned, [rollup.choice for rollup in subject.rollups], subject.settings.policy.columns)
    clause = replace(clause, settings=_settings(clause, wanted))
    _expect_columns(planned, live, nullable=clause.setting("allow_nullable_key") == "1")
    names = {c.name for c in live.columns}
    actions = (
        *(addition(plan, None, names) for plan in plans),
        *(_remade(live, column) for column in retyped.values()),
        *(f"DROP COLUMN {quote(name)}" for name in sorted(gone)),
    )
    filled = [*map(as_column, plans), *retyped.values()]
    notes = tuple((column.name, column.note) for column in filled if column.note)
    partition = planned.partition_key if parted else clause.partition_by
    text = _engine(replace(clause, partition_by=partition, ttl=planned.ttl), choice if other_engine else None, order)
    return Shape(planned, text, actions, notes, changes, wanted)


def differences_of_shape(table: TargetTable, live: TargetTable) -> tuple[str, ...]:
    """The differences of a table from the live one, in words."""
    # A VersionedCollapsingMergeTree has its version in the sorting key.
    order = [", ".join(e for e in t.sorting_key if e not in t.system_columns) for t in (live, table)]
    pairs = {
        "engine": (str(live.engine), str(table.engine)),
        "ORDER BY": (f"({order[0]})", f"({order[1]})"),
        "PARTITION BY": (live.partition_key or "none", table.partition_key or "none"),
        "TTL": (live.ttl or "none", table.ttl or "none"),
    }
    said = [f"{what}: {now} -> {new}" for what, (now, new) in pairs.items() if new != now]
    theirs, mine = ({c.name: c.type for c in t.columns if c.name not in t.system_columns} for t in (live, table))
    for what, names in (("added", mine.keys() - theirs.keys()), ("dropped", theirs.keys() - mine.keys())):
        if names:
            said.append(f"columns {what}: {', '.join(sorted(names))}")
    both = [name for name in theirs if name in mine and mine[name] != theirs[name]]
    return (*said, *(f"column {name}: {theirs[name]} -> {mine[name]}" for name in both))


_BY_HAND = (
    "Create a table of the new shape by hand, name it in clickhouse.table (and another stream, if the file states "
    "one), and fill it with `ch_sink resync CONFIG --apply`; then drop the former one."
)


def _expect_one_key(live: TargetTable, clause: EngineClause) -> None:
    """Raises StreamFailed if the file does not say what becomes of a clause."""
    if own := [name for name, text in (("PRIMARY KEY", clause.primary_key), ("SAMPLE BY", clause.sample_by)) if text]:
        raise StreamFailed(
            f"{live.qualified} was created with {own[0]}, which the file does not state: another shape would lose it",
            hint=_BY_HAND,
        )


def _expect_same_versions(live: TargetTable) -> None:
    """Raises StreamFailed if versions would have another column: what the ledger knows of them would not compare."""
    if live.engine.version_column not in (None, "_version"):
        raise StreamFailed(
            f"{live.qualified} has its versions in column {live.engine.version_column!r}, and the engines that ch_sink "
            "makes have them in '_version'",
            hint=_BY_HAND,
        )


def _order(subject: Subject, choice: EngineChoice, wanted: Wanted, *, other_engine: bool) -> tuple[str, ...]:
    """The new elements of ORDER BY; empty if they stay. Raises StreamFailed if they lack a column of the key."""
    live, order = subject.table, wanted.spec.order_by
    own = live.system_columns
    now = tuple(e for e in live.sorting_elements if e.strip("`") not in own)
    if "order_by" not in wanted.stated or not order:
        order = now
    same = [*map(_bare, order)] == [*map(_bare, now)]
    if same and not other_engine:
        return ()
    lacking = [name for name in subject.key if name not in key_expressions(", ".join(order) or "tuple()")]
    if choice is not EngineChoice.APPEND and (lacking or not subject.key):
        raise StreamFailed(
            f"ORDER BY ({', '.join(order)}) of {live.qualified} lacks the key column {lacking[0]!r}, so the engine "
            "would merge different rows"
            if lacking
            else f"{live.qualified} has no key, and {choice.family.value} would merge equal rows into one",
            hint=f"Add {', '.join(lacking)} to init.order_by." if lacking else "Set key_columns, or keep its engine.",
        )
    history = choice is EngineChoice.APPEND and subject.key and order == now
    return (*order, "`_version`") if history else order


def _settings(clause: EngineClause, wanted: Wanted) -> tuple[tuple[str, str], ...]:
    """The live table's, with those that the file states in their place."""
    spec, own = wanted.spec, dict(clause.settings)
    if spec.allow_nullable_key:
        own["allow_nullable_key"] = "1"
    if "settings" in wanted.stated:
        own |= {name: value if (text := string_value(value)) is None else text for name, value in spec.settings}
    return tuple(own.items())


def _expect_columns(planned: TargetTable, live: TargetTable, *, nullable: bool) -> None:
    """Raises StreamFailed if a key or the TTL names a column that the server would not take there.

    ``nullable``: whether a key may hold null.
    """
    types = {c.name: parse_type(c.type) for c in planned.columns}
    names = {*types, *(c.name for c in live.columns)}
    texts = {"order_by": ", ".join(planned.sorting_elements), "partition_by": planned.partition_key, "ttl": planned.ttl}
    for key, text in texts.items():
        what = key.replace("_", " ").upper()
        if gone := sorted(columns_in(text or "tuple()", names) - types.keys()):
            raise StreamFailed(
                f"{what} {text} of {live.qualified} names the column {gone[0]!r}, which the new table does not have",
                hint=f"State init.{key} with the column's new name.",
            )
        bare = [element for element in key_expressions(text or "tuple()") if element in types]
        if key != "ttl" and not nullable and (null := [name for name in bare if types[name].nullable]):
            raise StreamFailed(
                f"{what} {text} of {live.qualified} names the column {null[0]!r}, which may be null",
                hint="Leave it out, or accept it with init.allow_nullable_key: true.",
            )


def _added(subject: Subject, choice: EngineChoice, spec: TableSpec) -> tuple[ColumnPlan, ...]:
    """Columns that the live table lacks: of the source, unless they are ignored, and of the engine."""
    live, changes = subject.table, subject.settings.policy.changes
    there = {c.name for c in live.columns}
    fixed = _fixed(choice, spec)
    plans = system_plans(fixed) if choice is EngineChoice.APPEND or choice is not choice_of(live, spec) else []
    if subject.schema is not None and changes.evolve != "ignore":
        plans += [plan for plan in plan_columns(subject.schema, fixed) if not plan.system]
    return tuple(plan for plan in plans if plan.name not in there)


def _retyped(subject: Subject, choice: EngineChoice, spec: TableSpec) -> dict[str, Column]:
    """The columns whose type at the source has changed, as the new table has them. An ALTER could not change all."""
    live, schema = subject.table, subject.declared
    if schema is None:
        return {}
    free, ignored = replace(live, place_columns=frozenset()), subject.settings.policy.changes.evolve == "ignore"
    out: dict[str, Column] = {}
    for plan in plan_columns(schema, _fixed(choice, spec)):
        column, stated = live.column(plan.name), plan.comment or f"debezium: {plan.note}"
        source = SourceType.from_comment(stated)
        if plan.system or column is None or not column.insertable or source is None:
            continue
        changed = outgrown(free, column, source)
        if changed is None or (ignored and not changed.retyped):
            continue
        if changed.change == "null" and changed.clickhouse_type is None:
            continue  # an array cannot be made nullable
        kind = changed.clickhouse_type or plan.type
        default = plan.default if kind == plan.type else ""
        column = replace(column, type=kind, default_kind="DEFAULT" if default else "", default_expression=default)
        if SourceType.from_comment(column.comment) is not None:
            out[plan.name] = replace(column, comment=restated(column, stated))
        else:
            out[plan.name] = replace(column, note=stated.removeprefix("debezium: "))
    return out


def _meanings(live: TargetTable, columns: Iterable[Column]) -> Iterator[str]:
    """Columns that keep their type and hold other values of the source than before, in words."""
    for column in columns:
        former = live.column(column.name)
        if former is not None and former.type == column.type and column.stated is not None:
            yield f"column {column.name}: {column.type} of {column.stated.to_note().partition(' {')[0]}"


def _remade(live: TargetTable, column: Column) -> str:
    """Gives a column of an empty table another type: the server converts few, and a codec may not fit.

    Indexes of the column stay, as it comes back in the same ALTER. Raises StreamFailed if others are computed from it.
    """
    former, names = live.column(column.name), [c.name for c in live.columns]
    name, comment = quote(column.name), f"COMMENT {literal(column.comment)}"
    if former is None or former.type == column.type or widened(former.type, column.type) == column.type:
        return f"MODIFY COLUMN {name} {column.type} {comment}"
    if using := [other for other, inputs in live.computed_from if column.name in inputs]:
        raise StreamFailed(
            f"column {column.name!r} of {live.qualified} would become {column.type}, and {using[0]!r} is computed "
            "from it",
            hint=_BY_HAND,
        )
    default = f"DEFAULT {column.default_expression} " if column.default_expression else ""
    at = names.index(column.name)
    place = f"AFTER {quote(names[at - 1])}" if at else "FIRST"
    return f"DROP COLUMN {name}, ADD COLUMN {name} {column.type} {default}{comment} {place}"


def _fixed(choice: EngineChoice, spec: TableSpec) -> TableSpec:
    """The file's choices among column types, for a table of this kind."""
    return replace(spec, engine=choice, order_by=(), partition_by="", allow_nullable_key=True)


def _gone(subject: Subject, choice: EngineChoice, *, other_engine: bool) -> set[str]:
    """Columns that the new table does not have: former names of renamed ones, and those of another engine."""
    live = subject.table
    former = {old for old, _ in subject.settings.policy.columns.rename} & live.left_out
    own = live.system_columns - {name for name, _ in choice.system_columns} if other_engine else set()
    return {c.name for c in live.columns} & (former | own)


def _engine(clause: EngineClause, choice: EngineChoice | None, order: Sequence[str]) -> str:
    """The engine clause; ``choice``: the engine if it is another one, ``order``: the elements of ORDER BY if other."""
    name, arguments = clause.name, clause.arguments
    if choice is not None:
        prefix = next((p for p in ("Replicated", "Shared") if name.startswith(p)), "")
        path = arguments[:2] if prefix and arguments and arguments[0].startswith("'") else ()
        name, arguments = prefix + choice.family.value, (*path, *filter(None, [choice.arguments]))
    parts = [
        f"{name}({', '.join(arguments)})",
        # The table after AS may have another one, which would hold.
        f"PARTITION BY {clause.partition_by or 'tuple()'}",
        f"ORDER BY ({', '.join(order)})" if order else f"ORDER BY {clause.order_by or 'tuple()'}",
        f"TTL {clause.ttl}" if clause.ttl else "",
        settings_sql(clause.settings),
    ]
    return " ".join(part for part in parts if part)


def _as_the_server_writes_it(client: Client, spec: TableSpec) -> TableSpec:
    """The file's expressions in the server's words, which compare with those of the live table."""
    order, made = ", ".join(spec.order_by), "CREATE TABLE t (c Int8) ENGINE = "
    parts = [
        "MergeTree",
        f"PARTITION BY {listed(spec.partition_by)}" if spec.partition_by else "",
        f"ORDER BY ({order})",
        f"TTL {spec.ttl}" if spec.ttl else "",
    ]
    sql = {"sql": made + " ".join(filter(None, parts))}
    [found] = client.rows("SELECT formatQuerySingleLine({sql:String}) AS sql", sql, doing="read the section init")
    clause = parse_engine("MergeTree", str(found["sql"]).partition("ENGINE = ")[2])
    inner = clause.order_by.removeprefix("(").removesuffix(")") if len(spec.order_by) > 1 else clause.order_by
    elements = tuple(split_commas(inner)) if spec.order_by else ()
    return replace(spec, order_by=elements, partition_by=clause.partition_by, ttl=clause.ttl)


def _bare(expression: str) -> str:
    """An expression without quotes of names, and parentheses around it."""
    return ", ".join(key_expressions(expression or "tuple()")).replace("`", "")
