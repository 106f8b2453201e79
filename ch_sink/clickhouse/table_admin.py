"""Changes of the target table: statements of ``init``, truncates, and columns that it gets while its stream runs.

Another stream may alter the same table at the same time.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.fence import await_earlier_inserts, under
from ch_sink.clickhouse.lookup import has_rows, max_version
from ch_sink.clickhouse.rollups import fill_rollups, keep_rollups, planned_rollups
from ch_sink.clickhouse.round_trip import expect_faithful
from ch_sink.clickhouse.schema import detect, execute, expect_unbound, has_nullable_tuple, require_settings
from ch_sink.clickhouse.settings import RETRYABLE_CODES, Retry
from ch_sink.errors import AccessDenied, ClickHouseError, ClickHouseUnavailable, StreamFailed
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import Policy
from ch_sink.ports import Fence
from ch_sink.table.ddl import Statement, own_rows, truncate_statement, views_of
from ch_sink.table.evolve import offered
from ch_sink.table.model import Family, TargetTable, clashes
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.views import CURRENT, MOMENTS, Shown, differs, name_taken, stale, stated_keys
from ch_sink.types import clickhouse_type
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import SourceType

Outcome = Literal["created", "changed", "unchanged", "refused"]

_DEFINITIONS = {
    "database": "SELECT name AS definition FROM system.databases WHERE name = {name:String}",
    "table": "SELECT name AS definition FROM system.tables WHERE database = {database:String} AND name = {name:String}",
    "view": "SELECT create_table_query AS definition FROM system.tables "
    "WHERE database = {database:String} AND name = {name:String}",
    "row policy": "SELECT toString(arraySort(groupArray((short_name, select_filter, apply_to_all, apply_to_list, "
    "apply_to_except)))) AS definition FROM system.row_policies WHERE database = {database:String} "
    "AND table = {table:String} HAVING count() > 0",
}
"""The parts of an object's definition that statements of ``init`` can change; no row if it does not exist."""


def run_statement(client: Client, statement: Statement) -> Outcome:
    """Run the statement, unless what it creates exists. One that is only advised may be refused.

    Raises ClickHouseError.
    """
    before = _definition(client, statement)
    if before and statement.if_not_exists and not statement.on_cluster:
        return "unchanged"
    try:
        execute(client, [statement.sql])
    except ClickHouseError as error:
        if error.temporary or not statement.advised:
            raise
        log.warning("%s. The column stays as it is; the statement was: %s", error, statement.sql)
        return "refused"
    if statement.kind in ("alter", "column types"):
        return "changed"
    if before and before == _definition(client, statement):
        return "unchanged"
    return "changed" if before and statement.kind in ("view", "row policy") else "created"


def _definition(client: Client, statement: Statement) -> str:
    """The object's definition, empty if it does not exist or is not visible to the user."""
    if statement.kind not in _DEFINITIONS:
        return ""
    values = {"name": statement.name, "database": statement.database, "table": statement.table}
    where = {name: value for name, value in values.items() if f"{{{name}:" in _DEFINITIONS[statement.kind]}
    try:
        found = client.rows(_DEFINITIONS[statement.kind], where, doing="look for what exists")
    except ClickHouseError:
        return ""
    return str(found[0]["definition"]) if found else ""


log = logging.getLogger("ch_sink")

_CONCURRENT = RETRYABLE_CODES | {
    15,  # DUPLICATE_COLUMN: added between the server's check and its commit
    57,  # TABLE_ALREADY_EXISTS: two CREATE OR REPLACE of one view
    60,  # UNKNOWN_TABLE: the same, seen from the other side
    236,  # ABORTED
    341,  # UNFINISHED: not yet on all replicas
    517,  # CANNOT_ASSIGN_ALTER: another ALTER came first
    571,  # DATABASE_REPLICATION_FAILED
}
_RETRY = Retry(attempts=10, longest_wait=8.0)


def _default_for(chosen: str, column: UnknownColumn) -> str | None:
    """The column's default, which is written for the type that the decoder chose, for this type."""
    if column.default is None or not (column.clickhouse_type or "").startswith("Nullable(Tuple("):
        return column.default
    if chosen.startswith("Nullable(Tuple("):
        return column.default
    return column.default.removeprefix("tuple(").removesuffix(")") if chosen.startswith(("Array(", "Map(")) else None


def _lacks(table: TargetTable, wanted: UnknownColumn) -> bool:
    column = table.column(wanted.name)
    if column is None or wanted.change == "add" or wanted.clickhouse_type is None:
        return column is None
    if wanted.change == "null" and not parse_type(column.type).nullable:
        return True
    return bool(offered(table, [wanted]))


def _refused(error: ClickHouseError, statements: Sequence[str]) -> ClickHouseError:
    known = None if isinstance(error, AccessDenied) else error.hint
    step = (known or "Run it by hand, and then this again").rstrip(".")
    return type(error)(error.message, code=error.code, hint=f"{step}: {'; '.join(statements)}")


@dataclass(frozen=True, slots=True)
class ClickHouseTableAdmin:
    """One table. ``cluster``: the cluster on which ``init`` created it, if any."""

    client: Client
    database: str
    table: str
    policy: Policy
    cluster: str | None = None
    types: TypeChoices = field(default_factory=TypeChoices)
    rollups: tuple[RollupChoice, ...] = ()

    def detect(self) -> TargetTable:
        require_settings(self.client)
        table = detect(self.client, self.database, self.table, self.policy)
        expect_faithful(self.client, table)
        expect_unbound(self.client, table)
        return self._with_rollups(table)

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """Add or change these columns and recreate stale views; returns the table as it is afterwards.

        Another stream may add them at the same time: the first one decides the column's type.

        Raises:
            TableError: a table has the name of a view.
            ClickHouseError, AccessDenied: the server refuses.
            StreamFailed: the server confirms the change, but the columns are still missing.
        """
        wanted = self._typed(columns)
        if wanted:  # a type that another stream has widened since must not become narrower again
            table = detect(self.client, self.database, self.table, self.policy)
        for attempt in range(_RETRY.attempts):
            lacking = [c for c in wanted if _lacks(table, c)]
            if not lacking:
                break
            for first, second in clashes([*(c.name for c in table.columns), *(c.name for c in lacking)]):
                log.warning("%s: columns %r and %r differ by letter case only", table.qualified, first, second)
            try:
                execute(self.client, offered(table, lacking, self.cluster))
            except ClickHouseError as error:
                if error.code not in _CONCURRENT and not isinstance(error, ClickHouseUnavailable):
                    raise _refused(error, offered(table, lacking, self.cluster)) from None
                if attempt == _RETRY.attempts - 1:
                    raise
                log.info("%s; trying again", error)
                _RETRY.sleep(_RETRY.wait(attempt + 1, error.code))
            table = detect(self.client, self.database, self.table, self.policy)
        else:
            raise StreamFailed(
                f"{table.qualified} still lacks the added columns {', '.join(repr(c.name) for c in wanted)}",
                hint="Does clickhouse.url lead to several servers? Add the columns on all of them, and run again.",
            )
        foreign = self._recreate_views(table, key)
        for name in foreign if columns else ():
            log.warning("view %s.%s is not the one that init creates and is left alone", self.database, name)
        return self._with_rollups(table)

    def _typed(self, columns: Sequence[UnknownColumn]) -> list[UnknownColumn]:
        """The columns with the types that this server has, as ``init`` chooses them."""
        tuples = any((c.clickhouse_type or "").startswith("Nullable(Tuple(") for c in columns)
        known = not tuples or has_nullable_tuple(self.client)
        out = []
        for column in columns:
            source = SourceType.from_comment(column.comment) if column.change == "add" else None
            if source is not None:
                chosen = clickhouse_type(source, replace(self.types, nullable_tuple=known), column=column.name)
                default = _default_for(chosen, column)
                column = replace(column, clickhouse_type=chosen, default=default)
            out.append(column)
        return out

    def _recreate_views(self, table: TargetTable, key: Sequence[str]) -> list[str]:
        """Recreate those of the product's views of which the table would have others by now.

        ``key``: the topic's, where it is known (else empty: that with which the views were created). Returns the names
        that views of somebody else have.
        """
        recreated: list[Statement] = []
        for attempt in range(_RETRY.attempts):
            shown = shown_views(self.client, self.database, [table.name + end for end in (CURRENT, *MOMENTS)])
            kept = {name: view for name, view in shown.items() if view.kept}
            stated = stated_keys(kept.values(), key) or ([tuple(key)] if key else [])
            if not stated and table.engine.family is Family.MERGE_TREE:
                kept = {}
            wanted = views_of(table, stated[0] if stated else (), self.cluster)
            if taken := name_taken(shown, [statement.name for statement in wanted]):
                raise taken
            old = [s for s in wanted if s.name in kept and stale(kept[s.name], table, s.sql)]
            if not old or old == recreated:
                return sorted(shown.keys() & {s.name for s in wanted} - kept.keys())
            try:
                execute(self.client, [statement.sql for statement in old])
                recreated = old
            except AccessDenied as error:
                raise _refused(error, [statement.sql for statement in old]) from None
            except ClickHouseError as error:
                if error.code not in _CONCURRENT or attempt == _RETRY.attempts - 1:
                    raise
                _RETRY.sleep(_RETRY.wait(attempt + 1, error.code))
            # Another stream may have added columns in the meantime.
            table = detect(self.client, self.database, self.table, self.policy)
        return []

    def fill_rollups(
        self, table: TargetTable, supersede: Callable[[], Sequence[Fence]], *, doubtful: bool, last: str = ""
    ) -> None:
        fill_rollups(self.client, table, supersede, doubtful=doubtful, last=last)

    def keep_rollups(self, table: TargetTable, run: str) -> None:
        keep_rollups(self.client, table, run)

    def _with_rollups(self, table: TargetTable) -> TargetTable:
        if not self.rollups:
            return table
        return replace(table, rollups=planned_rollups(self.client, table, self.rollups, self.policy.columns))

    def truncate(
        self, table: TargetTable, version: int, version_column: str | None, supersede: Callable[[], Sequence[Fence]]
    ) -> None:
        if table.engine.family is Family.REPLACING:  # a repeat writes the same versions
            execute(self.client, [truncate_statement(table, version, version_column)], of=table)
            return
        fences = supersede()
        for fence in fences:
            await_earlier_inserts(self.client, table, fence, cluster=table.cluster or self.cluster)
        last = fences[-1]
        last.check()
        sql = truncate_statement(table, version, version_column, last.condition)
        settings: dict[str, str | int] = {"use_query_cache": 0, "select_sequential_consistency": 1}
        doing = f"truncate {table.qualified}"
        with under(last):
            self.client.command(sql, settings=settings, of=table, doing=doing, again=False, query_id=last.query_id)

    def highest_version(self, table: TargetTable) -> int:
        return max_version(self.client, table, empty=-1, condition=own_rows(table, self.policy.columns))

    def has_rows(self, table: TargetTable, *, of_any: bool = False) -> bool:
        return has_rows(self.client, table, "" if of_any else own_rows(table, self.policy.columns))


def unfitting_view(client: Client, table: TargetTable, filled: Collection[str]) -> str:
    """The product's view that lacks one of these columns, or shows it as another type, and how; empty if none."""
    columns = [column for column in table.shown_columns if column.name in filled]
    shown = shown_views(client, table.database, [table.name + end for end in (CURRENT, *MOMENTS)])
    found = ((name, differs(view, columns)) for name, view in shown.items() if view.kept)
    return next((f"view {table.database}.{name} no longer fits the table: {how}" for name, how in found if how), "")


def shown_views(client: Client, database: str, names: Sequence[str]) -> dict[str, Shown]:
    """The objects that exist under these names of a database. Raises ClickHouseError."""
    found = client.rows(
        "SELECT name, engine, comment, (SELECT groupArray((table, name, type)) FROM system.columns "
        "WHERE database = {database:String} AND table IN {names:Array(String)}) AS columns "
        "FROM system.tables WHERE database = {database:String} AND name IN {names:Array(String)}",
        {"database": database, "names": list(names)},
        doing="look at the views",
    )
    return {
        str(row["name"]): Shown(
            str(row["engine"]),
            str(row["comment"]),
            {str(name): str(kind) for view, name, kind in row["columns"] if view == row["name"]},
        )
        for row in found
    }


def without_foreign(client: Client, statements: Iterable[Statement]) -> tuple[list[Statement], list[str]]:
    """The statements without those of views whose name a view of somebody else has, and these names.

    Raises TableError if a table has such a name, ClickHouseError.
    """
    statements = list(statements)
    names = [s.name for s in statements if s.kind == "view"]
    shown = shown_views(client, statements[0].database, names) if names else {}
    if taken := name_taken(shown, names):
        raise taken
    foreign = [name for name, view in shown.items() if not view.kept]
    return [s for s in statements if s.kind != "view" or s.name not in foreign], foreign
