"""Rollups on the server: their types, their filling from the table, and the insert of a chunk's difference.

A filling computes a rollup from the table, beside the former one, and exchanges both. Nothing may change the table
meanwhile, and no insert that was meant for the former rollup may reach the table after it: so whoever fills has
superseded every execution first (`Fence`), and the filling itself asks the fence, as inserts do. (CREATE OR REPLACE
TABLE would be one statement; 26.3 then refuses inserts into the new table, if it has a deduplication window.)
"""

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import fenced, input_type, readable
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.fence import SETTINGS, await_earlier_inserts, under
from ch_sink.clickhouse.settings import EVERY_TYPE
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable, StreamFailed, TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import Rollup, RollupChoice
from ch_sink.table.rollup_plan import (
    expect_lasting,
    expect_rollups,
    expect_row_functions,
    names_in,
    probe,
    rollup_of,
    syntax_probe,
)
from ch_sink.types.arrow import sent_type
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import literal, quote

log = logging.getLogger("ch_sink")

_FILLING = "__ch_sink_filling_"
"""Between the names of a rollup and of the execution that fills it."""
_ONE_BLOCK: dict[str, str | int] = {
    # The groups of a chunk are one block, one part and one token.
    "group_by_two_level_threshold": 0,
    "group_by_two_level_threshold_bytes": 0,
    "max_bytes_before_external_group_by": 0,
    "max_bytes_ratio_before_external_group_by": 0,
}


_MEANING = """\
SELECT version() AS version, serverTimezone() AS zone, (
    SELECT arraySort(groupArray((name, value))) FROM system.settings
    WHERE changed AND name NOT IN ('database', 'log_comment') AND NOT match(name, '^(max|min|http|send|log|query)_')
) AS settings"""
"""Everything besides the row that may change an expression's value."""
_CREATED = """\
SELECT create_table_query AS created FROM system.tables WHERE database = {database:String} AND name = {table:String}"""


def planned_rollups(
    client: Client, table: TargetTable, choices: Sequence[RollupChoice], chosen: ColumnPolicy
) -> tuple[Rollup, ...]:
    """The rollups of a table, with the types that this server gives their expressions.

    Raises ClickHouseUnavailable; TableError, naming the rollup, with the server's words on an expression.
    """
    expect_rollups(table, choices, chosen)
    if not choices:
        return ()
    where = {"database": table.database, "table": table.name}
    for row in client.rows(_CREATED, where, doing="look at the columns of the rollups"):
        expect_lasting(choices, str(row["created"]))
    server = repr(client.rows(_MEANING, doing="look at the settings of the rollups"))
    made = []
    for choice in choices:
        try:
            found = client.rows(probe(table, choice), settings=EVERY_TYPE, doing=f"inspect rollup {choice.name}")
        except ClickHouseUnavailable:
            raise
        except ClickHouseError as error:
            raise _refused(client, table, choice, error) from None
        made.append(rollup_of(table, choice, [str(row["type"]) for row in found], server))
    trees = [str(row["explain"]) for row in client.rows(syntax_probe(choices), doing="parse the rollups")]
    expect_row_functions(table, choices, trees, _functions(client, names_in(trees)))
    return tuple(made)


def _functions(client: Client, names: Sequence[str]) -> dict[str, bool]:
    """Those of these names that are functions: whether they are built in, of one row, and not said to vary."""
    found = client.rows(
        "SELECT name, case_insensitive, NOT is_aggregate AND origin = 'System' AS plain, "
        "COLUMNS('^deterministic$') FROM system.functions WHERE lower(name) IN {names:Array(String)}",
        {"names": [name.lower() for name in names]},
        doing="look at the functions of the rollups",
    )
    judged = {str(row["name"]): bool(row["plain"]) and row.get("deterministic", 1) == 1 for row in found}
    folded = {str(row["name"]).lower(): str(row["name"]) for row in found if row["case_insensitive"]}
    spelt = {name: name if name in judged else folded.get(name.lower(), "") for name in names}
    return {name: judged[known] for name, known in spelt.items() if known}


def _refused(client: Client, table: TargetTable, choice: RollupChoice, error: ClickHouseError) -> TableError:
    """The error for the expression that the server refuses by itself, or for all of them."""
    for key, text in choice.expressions:
        alone = (
            RollupChoice(choice.name, (("k", text),)) if key != "where" else RollupChoice("", (("k", "1"),), where=text)
        )
        try:
            client.rows(probe(table, alone), settings=EVERY_TYPE, doing=f"look at {key}")
        except ClickHouseError as own:
            return _of(f"rollups.{choice.name}.{key}: the server refuses {text}", own, table)
    return _of(f"rollups.{choice.name}: the server refuses it", error, table)


def _of(what: str, error: ClickHouseError, table: TargetTable) -> TableError:
    columns = ", ".join(c.name for c in table.source_columns)
    return TableError(f"{what}: {error.message}", hint=f"Expressions may name these columns: {columns}.")


def expect_free_names(client: Client, rollups: Sequence[Rollup]) -> dict[str, str]:
    """The comments of the rollups' tables that exist, by name. Raises TableError for a name that another table has."""
    if not rollups:
        return {}
    names = [name for rollup in rollups for name in (rollup.choice.name, rollup.view)]
    found = client.rows(
        "SELECT name, engine, comment FROM system.tables WHERE database = {database:String} "
        "AND name IN {names:Array(String)}",
        {"database": rollups[0].database, "names": names},
        doing="look for the rollups",
    )
    existing = {str(row["name"]): row for row in found}
    for rollup in rollups:
        own, view = existing.get(rollup.choice.name), existing.get(rollup.view)
        if own is not None and not str(own["comment"]).startswith(rollup.owned):
            raise _taken(rollup.choice.name, rollup)
        if view is not None and (view["engine"], view["comment"]) != ("View", rollup.owned):
            raise _taken(rollup.view, rollup)
    return {name: str(row["comment"]) for name, row in existing.items()}


def _taken(name: str, rollup: Rollup) -> TableError:
    return TableError(
        f"rollups.{rollup.choice.name}: {quote(rollup.database)}.{quote(name)} exists, and is not a rollup of "
        f"{rollup.table}",
        hint="Give the rollup another name.",
    )


def fill_rollups(
    client: Client,
    table: TargetTable,
    supersede: Callable[[], Sequence[Fence]],
    *,
    doubtful: bool,
    last: str = "",
) -> list[str]:
    """Fill the table's rollups whose definition has changed, or that are new; all of them if they are ``doubtful``.

    Args:
        supersede: begins an execution of every partition.
        last: only rollups that the job of this run has kept are not in doubt; empty if it is the one at work.

    Returns the names of those that were filled.

    Raises TableError for a name that is taken, LedgerConflict if another job has the stream, ClickHouseError.
    """
    comments = expect_free_names(client, table.rollups)
    wanted = [r for r in table.rollups if doubtful or not comments.get(r.choice.name, "").startswith(r.comment(last))]
    if not wanted:
        return []
    fences = supersede()
    for fence in fences:
        await_earlier_inserts(client, table, fence)
    for rollup in wanted:
        log.info("filling rollup %s from %s", rollup.choice.name, rollup.table.replace("`", ""))
        _drop_leftovers(client, rollup)
        _fill(client, table, rollup, fences[-1], exists=rollup.choice.name in comments)
        client.command(rollup.create_view(), doing=f"create view {rollup.view}")
    return [rollup.choice.name for rollup in wanted]


def keep_rollups(client: Client, table: TargetTable, run: str) -> None:
    """State that the table's rollups are as the table is, and that the job of this run does nothing more.

    If the server refuses, they are filled when the stream opens again.
    """
    for rollup in table.rollups:
        try:
            client.command(rollup.keep(run), doing=f"note the end of rollup {rollup.choice.name}")
        except ClickHouseError as error:
            log.warning("rollup %s will be filled again as the stream opens: %s", rollup.choice.name, error)


def _drop_leftovers(client: Client, rollup: Rollup) -> None:
    """Drop what former fillings have left: one that is frozen before it exchanges the tables can no longer do so."""
    found = client.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND startsWith(name, {name:String})",
        {"database": rollup.database, "name": f"{rollup.choice.name}{_FILLING}"},
        doing=f"look for fillings of rollup {rollup.choice.name}",
    )
    for row in found:
        _drop(client, rollup, str(row["name"]))


def _drop(client: Client, rollup: Rollup, name: str) -> None:
    client.command(f"DROP TABLE IF EXISTS {quote(rollup.database)}.{quote(name)} SYNC", doing=f"drop {name}")


def _fill(client: Client, table: TargetTable, rollup: Rollup, fence: Fence, *, exists: bool) -> None:
    """Compute the rollup beside its table, then let the tables change places."""
    name = f"{rollup.choice.name}{_FILLING}{fence.execution}"
    fence.check()
    client.command(rollup.create(name), doing=f"create {name}")
    with under(fence):
        client.command(
            rollup.fill(name, fence.condition),
            settings={**EVERY_TYPE, "use_query_cache": 0, "insert_deduplicate": 0},
            of=table,
            doing=f"fill rollup {rollup.choice.name}",
            again=False,
            query_id=fence.query_id,
        )
    own = f"{quote(rollup.database)}.{quote(name)}"
    swap = f"EXCHANGE TABLES {own} AND {rollup.qualified}" if exists else f"RENAME TABLE {own} TO {rollup.qualified}"
    client.command(swap, doing=f"put rollup {rollup.choice.name} in place", again=False)
    if exists:
        _drop(client, rollup, name)


def roll_up(
    client: Client,
    table: TargetTable,
    rollup: Rollup,
    rows: pa.Table,
    token: str,
    fence: Fence | None,
    settings: dict[str, str | int],
) -> None:
    """Add signed rows of the table to the rollup, as one block under this token.

    Args:
        settings: those of every insert.

    Raises:
        StreamFailed: the rows lack a column of the rollup.
        LedgerConflict, ClickHouseError: as for every insert.
    """
    names = (*rollup.used, rollup.sign)
    if lacking := [name for name in names if name not in rows.column_names]:
        raise StreamFailed(
            f"rollup {rollup.choice.name} uses column {lacking[0]!r} of {table.qualified}, which the events lack",
            hint="Remove the column from the rollup.",
        )
    block = readable(table, rows.select(list(names)))
    condition = fence.condition if fence is not None else ""
    if fence is not None and not condition:
        fence.check()
    shown = ", ".join(f"{_stored(table, block, name)} AS {quote(name)}" for name in names)
    sent = fenced([(name, input_type(table, block, name)) for name in names], condition)
    query = rollup.sums_of(f"(SELECT {shown} FROM ({sent}))", quote(rollup.sign))
    with under(fence):
        client.insert(
            rollup.qualified,
            block,
            settings={**settings, **SETTINGS, **_ONE_BLOCK, "insert_deduplication_token": token},
            doing=f"add {rows.num_rows} rows to rollup {rollup.choice.name}",
            query=([name for name, _ in rollup.columns], query),
            query_id=fence.query_id if fence is not None and condition else "",
        )


def _stored(table: TargetTable, rows: pa.Table, name: str) -> str:
    """SQL of a value as the table stores it: a null that the column cannot hold is its default."""
    column = table.column(name)
    assert column is not None
    value = quote(name)
    if rows.column(name).null_count and not parse_type(column.type).nullable:
        default = column.default_expression or f"defaultValueOfTypeName({literal(sent_type(column.type))})"
        value = f"ifNull({value}, CAST({default}, {literal(sent_type(column.type))}))"
    elif input_type(table, rows, name) == column.type:
        return value
    return f"CAST({value}, {literal(column.type)})"
