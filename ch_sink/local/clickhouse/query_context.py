"""The context of one query: its connection, settings, database and external tables, and their removal."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from ch_sink.local.clickhouse.engine import Connection, Engine
from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.http_request import Request
from ch_sink.local.clickhouse.idle_connections import IdleConnection, IdleConnections
from ch_sink.local.clickhouse.row_policies import role_mark
from ch_sink.local.clickhouse.sessions import Sessions
from ch_sink.local.clickhouse.spool import Spool
from ch_sink.local.clickhouse.sql_text import quote_identifier, quote_string

__all__ = ["connection_for", "kill", "query_params", "settings_of", "with_external_tables"]

# Parameters that are not settings (HTTPHandler's own list), and settings of the transport, which this endpoint obeys.
_RESERVED = {
    *("query", "database", "default_format", "query_id", "user", "password", "quota_key", "role", "session_id"),
    *("session_timeout", "session_check", "compress", "decompress", "buffer_size", "wait_end_of_query", "stacktrace"),
    *("client_protocol_version", "http_method", "close_session"),
}
_NAME = re.compile(r"^[A-Za-z_]\w*$", re.ASCII)
_EXTERNAL = re.compile(r"^(.+)_(format|structure|types)$")


def query_params(request: Request) -> dict[str, str]:
    """The ``param_*`` values by their bare names, as text in ClickHouse's escaping."""
    return {k[6:]: v for k, v in request.params.items() if k.startswith("param_") and len(k) > 6}


def settings_of(request: Request, external: Mapping[str, Spool]) -> dict[str, str]:
    """The parameters that are settings of the query."""
    found: dict[str, str] = {}
    for name, value in request.params.items():
        if name in _RESERVED or name.startswith("param_"):
            continue
        about = _EXTERNAL.match(name)
        if about is not None and about.group(1) in external:
            continue
        if _NAME.match(name) is None:
            raise QueryError.make(115, "UNKNOWN_SETTING", f"Unknown setting '{name}'")
        found[name] = value
    return found


@contextlib.contextmanager
def connection_for(
    request: Request,
    engine: Engine,
    sessions: Sessions,
    idle: IdleConnections,
    settings: Mapping[str, str],
    *,
    leaves_traces: bool,
) -> Iterator[tuple[Connection, str]]:
    """Yield a connection with the request's settings and database, and the mark by which ``kill`` finds its query.

    ``leaves_traces``: the statement may change the connection, such as by SET, so that no other request may use it.
    """
    session_id = request.params.get("session_id", "")
    if not session_id:
        database = _database(request)
        key = idle.key(settings, database)
        kept = idle.take(key)
        used = kept or IdleConnection(engine.connect())
        comment = _comment(request, settings, used.mark)
        try:
            if kept is None:
                _apply(used.connection, {**settings, "log_comment": comment}, database)
            elif comment != used.comment:
                _apply(used.connection, {"log_comment": comment}, "")
            used.comment = comment
            yield used.connection, used.mark
        except BaseException:
            used.connection.close()
            raise
        if leaves_traces:
            used.connection.close()
        else:
            idle.leave(key, used)
        return
    mark = f"http-{secrets.token_hex(8)}"
    applied = {**settings, "log_comment": _comment(request, settings, mark)}
    connection = sessions.borrow(
        session_id, timeout=request.params.get("session_timeout"), must_exist=request.flag("session_check")
    )
    try:
        undo = _undo(connection, applied, _database(request))
        try:
            _apply(connection, applied, _database(request))
            yield connection, mark
        finally:
            for statement in undo:
                connection.run(statement)
    finally:
        sessions.give_back(session_id)


def _comment(request: Request, settings: Mapping[str, str], mark: str) -> str:
    """What the engine has no better place for: the mark, and the roles that row policies look for."""
    roles = (role_mark(role) for role in request.params.get("role", "").split(",") if role)
    return " ".join(filter(None, (settings.get("log_comment"), "".join([mark, *roles]))))


def _database(request: Request) -> str:
    return request.params.get("database") or request.header("X-ClickHouse-Database")


def _apply(connection: Connection, settings: Mapping[str, str], database: str) -> None:
    if settings:
        pairs = ", ".join(f"{name} = {quote_string(value)}" for name, value in settings.items())
        connection.run(f"SET {pairs}".encode(errors="surrogateescape"))
    if database:
        connection.run(f"USE {quote_identifier(database)}".encode(errors="surrogateescape"))


def _undo(connection: Connection, settings: Mapping[str, str], database: str) -> list[str]:
    """The statements that bring a session's own settings and database back."""
    names = ", ".join(quote_string(name) for name in settings)
    rows = connection.values(f"SELECT name, value, changed FROM system.settings WHERE name IN ({names})")
    undo = []
    for name, value, changed in rows:
        undo.append(f"SET {name} = '{value}'" if changed == "1" else f"SET {name} = DEFAULT")
    if database:
        ((current,),) = connection.values("SELECT currentDatabase()")
        undo.append(f"USE {quote_identifier(current)}")
    return undo


@contextlib.contextmanager
def with_external_tables(connection: Connection, request: Request, files: Mapping[str, Spool]) -> Iterator[None]:
    """Make each file of the form a temporary table of this query."""
    made: list[str] = []
    try:
        for field, rows in files.items():
            name = PurePath(field).name
            structure = request.params.get(f"{field}_structure") or _numbered(request.params.get(f"{field}_types", ""))
            if not structure:
                raise QueryError.make(
                    36, "BAD_ARGUMENTS", f"Neither structure nor types have been provided for external table {name}"
                )
            rows_format = request.params.get(f"{field}_format") or "TabSeparated"
            if _NAME.match(rows_format) is None:
                raise QueryError.make(73, "UNKNOWN_FORMAT", f"Unknown format {rows_format}")
            table = quote_identifier(name)
            connection.run(f"CREATE TEMPORARY TABLE {table} ({structure}) ENGINE = Memory".encode())
            made.append(table)
            if rows.size:
                connection.run(
                    f"INSERT INTO {table} FROM INFILE {quote_string(rows.path)} FORMAT {rows_format}", "Null"
                )
        yield
    finally:
        if request.params.get("session_id"):
            for table in made:
                connection.run(f"DROP TEMPORARY TABLE IF EXISTS {table}")


def _numbered(types: str) -> str:
    if not types:
        return ""
    depth, parts = 0, [""]
    for letter in types:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return ", ".join(f"_{number} {part.strip()}" for number, part in enumerate(parts, 1))


def kill(engine: Engine, mark: str) -> None:
    """Stop the query that carries this mark; a query that has already ended is no error."""
    with contextlib.suppress(QueryError):
        connection = engine.connect()
        try:
            connection.run(
                "KILL QUERY WHERE query_id IN (SELECT query_id FROM system.processes "
                f"WHERE position(Settings['log_comment'], {quote_string(mark)}) > 0) ASYNC"
            )
        finally:
            connection.close()
