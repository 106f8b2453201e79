"""Detection of tables, DDL statements, and facts about the server."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import conform
from ch_sink.clickhouse.client import PINNED_EVERYWHERE, Client
from ch_sink.clickhouse.fence import SETTINGS
from ch_sink.clickhouse.settings import EVERY_TYPE, PLAIN_MEANING
from ch_sink.clickhouse.state_table import NO_TABLE, StateTable
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import AccessDenied, ClickHouseError, ClickHouseUnavailable, ConfigError, TableError
from ch_sink.model.policy import Policy
from ch_sink.table.detect import DEFAULTS_SQL, DETECT_SQL, NO_UUID, assemble, detect_sql, local_table, needs_defaults
from ch_sink.table.facts import POLICIES_SQL, SERVER_SQL, RowPolicy, ServerFacts
from ch_sink.table.model import TargetTable
from ch_sink.types import clickhouse_type
from ch_sink.types.arrow import arrow_type, carried, integer_bounds
from ch_sink.types.build import is_constant
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType
from ch_sink.types.sql import literal, quote

_TOKEN = "insert_deduplication_token"
_REQUIRED: Mapping[str, str | int] = {
    **PLAIN_MEANING,
    **PINNED,
    **PINNED_EVERYWHERE,
    _TOKEN: "a token",
    "transform_null_in": 1,
    **{name: SETTINGS[name] for name in ("insert_null_as_default", "use_query_cache")},
}


def fixed_settings(client: Client) -> dict[str, str]:
    """The required settings that this user may not change and that have another value than they must; their values."""
    return {name: value for name in _REQUIRED if (value := client.fixed_at(name, _REQUIRED[name])) is not None}


def require_settings(client: Client) -> None:
    """Raises AccessDenied if the user may not change a setting that exactly-once inserts depend on."""
    fixed = fixed_settings(client)
    if fixed:
        name, value = next(iter(fixed.items()))
        wanted = "be set" if name == _TOKEN else f"be {_REQUIRED[name]}"
        raise AccessDenied(
            f"user {client.settings.username!r} may not change the ClickHouse setting {name}, which is "
            f"{value or 'empty'!r} and has to {wanted}: changes would be stored twice or lost",
            hint=f"Take the constraint on {', '.join(fixed)} out of the user's profile; set readonly to 0 or 2.",
        )


log = logging.getLogger("ch_sink")


def detect(client: Client, database: str, table: str, policy: Policy) -> TargetTable:
    """The facts of the target table; a Distributed one with its local table's engine and keys.

    Raises:
        TableNotFound: the table does not exist.
        TableError: the sink cannot write to the table as it is.
        ClickHouseError: the server refuses or does not answer.
    """
    row = _describe(client, DETECT_SQL, database, table)
    local: dict[str, Any] | None = None
    over = local_table(row) if row is not None else None
    if over is not None:
        local = _describe(client, detect_sql(over.cluster), over.database or database, over.table)
    found = assemble(row, policy, local=local, table=f"table {database}.{table}")
    notes = _notes(client, found, policy.table.notes, str(row["uuid"]) if row else "")
    columns = tuple(replace(column, note=notes.get(column.name, "")) for column in found.columns)
    added = tuple(_added(client, found, policy.columns.add))
    return replace(found, columns=columns, defaults=tuple(_defaults(client, found)), added=added)


def _notes(client: Client, table: TargetTable, name: str, uuid: str) -> dict[str, str]:
    """The source types of columns that ``init`` noted; empty if it noted none, or if their table does not exist.

    Notes are of a table, whatever its name is now. Those of an earlier table of this name count for columns that still
    are what ``init`` makes of them: this may be that table, restored from a backup or rebuilt.
    """
    notes = f"{quote(table.database)}.{quote(name)}"
    where = {"database": table.database, "table": table.name, "own": uuid, "none": NO_UUID}
    try:
        found = client.rows(
            "WITH {own:UUID} AS own "
            f"SELECT column, argMax(type, (uuid = own, written)) AS type, max(uuid = own) AS mine FROM {notes} "
            "WHERE (uuid = own AND own != {none:UUID}) OR (database = {database:String} AND table = {table:String}) "
            "GROUP BY column",
            where,
            of=StateTable(client, table.database, name),
            doing=f"read the column types of {table.qualified}",
        )
    except AccessDenied as error:
        # Without them, values of plain JSON would be read as other types.
        error.hint = f"Grant the user SELECT ON {notes}, where `ch_sink init` notes the source types of columns."
        raise
    except ClickHouseError as error:
        if error.code not in NO_TABLE:
            raise
        return {}
    noted = {str(row["column"]): (str(row["type"]), bool(row["mine"])) for row in found}
    return {name: note for name, (note, mine) in noted.items() if mine or _fits(table.column(name), note)}


def _fits(column: Column | None, note: str) -> bool:
    """Whether a column is of the type that ``init`` makes of a source type."""
    stated = SourceType.from_comment(f"debezium: {note}")
    if column is None or stated is None:
        return False
    return parse_type(clickhouse_type(stated)).bare == parse_type(column.type).bare


def _defaults(client: Client, table: TargetTable) -> Iterator[tuple[str, pa.Scalar]]:
    """The values of the constant DEFAULTs, as the server computes them."""
    wanted: list[tuple[str, str, pa.DataType]] = []
    names = [c.name for c in table.columns]
    for column in table.columns:  # also those that the stream does not fill
        if column.default_kind == "DEFAULT" and is_constant(column.default_expression, names):
            with suppress(TableError):  # a type that the sink cannot fill
                wanted.append((column.name, _cast(column.default_expression, column.type), arrow_type(column.type)))
    for name, value in _constants(client, wanted, f"read the defaults of {table.qualified}"):
        if value.is_valid:
            yield name, value


def _added(client: Client, table: TargetTable, added: Sequence[tuple[str, str]]) -> Iterator[tuple[str, pa.Scalar]]:
    """The values of the user's constants, as the server computes them. Raises ConfigError for one that is none."""
    names = [c.name for c in table.columns]
    wanted: list[tuple[str, str, pa.DataType]] = []
    for name, text in added:
        column = table.column(name)
        try:
            constant = is_constant(text, names)
        except TableError:  # no SQL
            constant = False
        if not constant:
            raise ConfigError(
                f"columns.add.{name}: {text} is not a constant", hint="Write text in single quotes, as in \"'eu'\"."
            )
        if column is not None and column.insertable:
            whole = integer_bounds(parse_type(column.type).bare) is not None  # CAST would wrap one that does not fit
            exact = f"accurateCast({text}, {literal(column.type)})" if whole else text
            wanted.append((name, _cast(exact, column.type), arrow_type(column.type)))
    yield from _constants(client, wanted, f"compute columns.add for {table.qualified}")


def _constants(
    client: Client, wanted: Sequence[tuple[str, str, pa.DataType]], doing: str
) -> Iterator[tuple[str, pa.Scalar]]:
    """Name and value of each constant expression."""
    if not wanted:
        return
    sql = "SELECT " + ", ".join(f"{text} AS c{i}" for i, (_, text, _) in enumerate(wanted))
    values = client.arrow(sql, settings=EVERY_TYPE, doing=doing)
    for (name, _, kind), column in zip(wanted, values.columns, strict=True):
        yield name, conform(column, kind)[0]


def _cast(expression: str, kind: str) -> str:
    return carried(f"CAST({expression} AS {kind})", kind)


def _describe(client: Client, sql: str, database: str, table: str) -> dict[str, Any] | None:
    doing = f"describe table {database}.{table}"
    found = client.rows(sql, {"database": database, "table": table}, doing=doing)
    if not found:
        return None
    return {**found[0], **(client.rows(DEFAULTS_SQL, doing=doing)[0] if needs_defaults(found[0]) else {})}


def has_nullable_tuple(client: Client) -> bool:
    """Whether a new column can be ``Nullable(Tuple(…))`` without a setting. Raises ClickHouseUnavailable."""
    try:
        client.rows("SELECT CAST(NULL AS Nullable(Tuple(a UInt8))) AS probe", doing="ask for Nullable(Tuple)")
    except ClickHouseUnavailable:
        raise
    except ClickHouseError:
        return False
    return True


_UNFINISHED, _TIMEOUT = 341, 159
_DDL: dict[str, str | int] = {
    "alter_sync": 2,
    "mutations_sync": 2,
    # By default the server gives a replica that is down 120 seconds to come back, and a host of a cluster 180.
    "replication_wait_for_inactive_replica_timeout": 5,
    "distributed_ddl_task_timeout": 30,
    "distributed_ddl_output_mode": "throw_only_active",
}


def execute(client: Client, statements: Sequence[str], of: TargetTable | None = None) -> None:
    """Run DDL statements in order, each on all replicas that are up.

    Those that are down carry it out when they are back, and the log says so. Whether the server that answers next has
    done it, is for the caller to see.

    ``of``: the table that the statements read, if they do. Raises ClickHouseError at the first that fails.
    """
    for statement in statements:
        head = " ".join(statement.split()[:6])
        try:
            client.command(statement, settings=_DDL, of=of, doing=f"run {head!r}", again=False)
        except ClickHouseError as error:
            late = error.code == _TIMEOUT and " ON CLUSTER " in statement
            if error.code != _UNFINISHED and not late:
                raise
            if why := _failed_mutation(client, statement):
                error.hint = (
                    "Stored values do not fit, so the table cannot be read: stop the mutation (KILL MUTATION) and give "
                    f"the column its former type. The server says: {why}"
                )
                raise
            log.warning("a replica that is down has not done it yet and will when it is back: %s", error)


def _failed_mutation(client: Client, statement: str) -> str:
    """Why the mutation of an ALTER fails; empty if it is not at fault."""
    try:
        found = client.rows(
            "SELECT database, table, latest_fail_reason AS why FROM system.mutations "
            "WHERE NOT is_done AND latest_fail_reason != ''",
            doing="look for mutations that fail",
        )
    except ClickHouseError:  # the user may not
        return ""
    named = ((f"ALTER TABLE {quote(str(r['database']))}.{quote(str(r['table']))} ", str(r["why"])) for r in found)
    return next((why for begin, why in named if statement.startswith(begin)), "")


def server_facts(client: Client, table: TargetTable | None = None) -> ServerFacts:
    """Version, settings and years of the server, and the visible row policies of a table.

    Raises ClickHouseError.
    """
    server = client.rows(SERVER_SQL, doing="read the server's settings")[0]
    policies = _policies(client, table) if table is not None else None
    return ServerFacts.from_rows(server, policies, fixed_settings(client))


def _policies(client: Client, table: TargetTable) -> Sequence[dict[str, Any]] | None:
    """The row policies of a table; None if this user may not see them."""
    where = {"database": table.database, "table": table.name}
    try:
        return client.rows(POLICIES_SQL, where, doing="read the row policies")
    except ClickHouseError:
        return None


def expect_unbound(client: Client, table: TargetTable) -> None:
    """Raises TableError for a row policy that binds the sink's own user, if it may see row policies."""
    for row in _policies(client, table) or ():
        policy, user = RowPolicy.of(row), str(row["user"])
        if policy.concerns(user):
            raise TableError(policy.binds(user), hint=policy.spare(user, table.qualified))
