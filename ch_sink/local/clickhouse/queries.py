"""One query over HTTP, from the request to its answer.

An INSERT's rows come ``FROM INFILE`` of the spooled body and a SELECT's result goes ``INTO OUTFILE`` of a pipe that
this process reads, so that the engine formats and parses every FORMAT itself and nothing large is held in memory.
Other statements are small and return their result whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ch_sink.local.clickhouse.engine import Connection, Engine, QueryError, Result
from ch_sink.local.clickhouse.messages import CHUNK_BYTES, Request, Response, Spool, Summary, descriptor_path, read_form
from ch_sink.local.clickhouse.row_policies import PolicyStatement, RowPolicies, parse_policy_statement, role_mark
from ch_sink.local.clickhouse.sql_text import Statement, analyse, quote_identifier, quote_string

_HEAD_BYTES = 256 << 10  # how far a query may reach into the body before the rows begin: max_query_size's default
_READS = {"SELECT", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK", "WATCH"}
_SYNC = re.compile(rb"\s+SYNC[\s;]*$", re.IGNORECASE)
_TEMPORARY = re.compile(rb"CREATE\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b", re.IGNORECASE)
_LEAVE_NOTHING = {
    *("SELECT", "INSERT", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CREATE", "ALTER", "DROP", "RENAME"),
    *("EXCHANGE", "TRUNCATE", "DELETE", "OPTIMIZE", "SYSTEM", "KILL"),
}
"""Statements after which their connection is as it was before, settings of their own included: see
``test_statements_leave_their_connection_as_it_was``. Temporary tables are refused."""
_WITH_RESULT = _READS | {"KILL", "BACKUP", "RESTORE"}
_BYTES = ("Arrow", "Native", "Parquet", "RowBinary", "ORC", "Avro")
# Parameters that are not settings (HTTPHandler's own list), and settings of the transport, which this endpoint obeys.
_RESERVED = {
    *("query", "database", "default_format", "query_id", "user", "password", "quota_key", "role", "session_id"),
    *("session_timeout", "session_check", "compress", "decompress", "buffer_size", "wait_end_of_query", "stacktrace"),
    *("client_protocol_version", "http_method", "close_session"),
}
_NAME = re.compile(r"^[A-Za-z_]\w*$", re.ASCII)
_KEPT = 16
_MAX_SELECTS = 128
"""At once; further ones wait."""
_Key = tuple[tuple[tuple[str, str], ...], str]
"""Settings and database."""


@dataclass
class _Idle:
    """A connection of one request at a time. ``mark``: found in the comment of its running query, and in no other."""

    connection: Connection
    mark: str
    comment: str | None = None
    """The ``log_comment`` that is set."""


class Connections:
    """Connections that requests leave for later ones with the same settings and database: at most 16.

    Opening one, setting its settings and closing it took a third of a small insert's processor time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._idle: list[tuple[_Key, _Idle]] = []
        """In the order in which they were left."""

    @contextlib.contextmanager
    def of(
        self, request: Request, settings: Mapping[str, str], *, leaves_traces: bool
    ) -> Iterator[tuple[Connection, str]]:
        """Yield a connection with the request's settings and database, and the mark of its query.

        ``leaves_traces``: the statement may change the connection, so that no other request may use it.
        """
        database = request.params.get("database", "")
        key = tuple(sorted((k, v) for k, v in settings.items() if k != "log_comment")), database
        kept = self._take(key)
        used = kept or _Idle(self._engine.connect(), f"http-{secrets.token_hex(8)}")
        # The mark and the roles that row policies look for: the engine has no better place for them.
        roles = (role_mark(role) for role in request.params.get("role", "").split(",") if role)
        comment = " ".join(filter(None, (settings.get("log_comment"), "".join([used.mark, *roles]))))
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
            self._leave(key, used)

    def close(self) -> None:
        """Close every connection; no request may be running."""
        with self._lock:
            kept, self._idle = self._idle, []
        for _, idle in kept:
            idle.connection.close()

    def _take(self, key: _Key) -> _Idle | None:
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == key:
                    return self._idle.pop(place)[1]
        return None

    def _leave(self, key: _Key, idle: _Idle) -> None:
        with self._lock:
            self._idle.append((key, idle))
            surplus, self._idle = self._idle[:-_KEPT], self._idle[-_KEPT:]
        for _, old in surplus:
            old.connection.close()


class QueryService:
    """Answers queries of one engine."""

    def __init__(self, engine: Engine, policies: RowPolicies, spool_directory: Path) -> None:
        self.engine, self.policies, self.spool_directory = engine, policies, spool_directory
        self._connections = Connections(engine)
        # A thread that has not called the engine before costs a small query half of its time.
        self._runners = ThreadPoolExecutor(_MAX_SELECTS, "select")

    def serve(self, request: Request, response: Response) -> None:
        """Run the request's query. Raises QueryError with the error for the client."""
        query_id = request.params.get("query_id") or request.header("X-ClickHouse-Query-Id") or str(uuid.uuid4())
        response.headers["X-ClickHouse-Query-Id"] = query_id
        with contextlib.ExitStack() as stack:
            if request.flag("wait_end_of_query"):
                response.spool = stack.enter_context(Spool(self.spool_directory))
            files: dict[str, bytes] = {}
            if request.header("Content-Type").lower().startswith("multipart/form-data"):
                params, files = read_form(b"".join(request.body), request.header("Content-Type"))
                request.params.update(params)
                request.body = iter(())
            text, statement, rest = _statement(request)
            _check(request, statement, text)
            policy = parse_policy_statement(text[: statement.end])
            # The body is complete before the engine runs: a slow client delays nobody, and one that leaves in
            # mid-body has inserted nothing.
            rows = stack.enter_context(Spool(self.spool_directory))
            rows.fill(rest)
            if policy is not None:
                self._change_policy(request, policy)
                summary = Summary()
            else:
                with self.engine.use():
                    summary = self._run(request, response, text, statement, rows, files)
            response.finish(summary)

    def close_connections(self) -> None:
        """Close all connections; no request may be running."""
        self._connections.close()

    def _change_policy(self, request: Request, policy: PolicyStatement) -> None:
        if policy.condition:
            query = quote_string(f"SELECT {policy.condition}")
            with self.engine.use(), self._connections.of(request, {}, leaves_traces=False) as (connection, _):
                connection.run(f"SELECT formatQuery({query})".encode(errors="surrogateescape"))
        self.policies.change(policy, lambda xml: self.engine.reopen(xml, self.close_connections))

    def _run(
        self,
        request: Request,
        response: Response,
        text: bytes,
        statement: Statement,
        rows: Spool,
        files: Mapping[str, bytes],
    ) -> Summary:
        default = request.params.get("default_format") or "TabSeparated"
        if not default.isalnum():
            raise QueryError.make(73, "UNKNOWN_FORMAT", f"Unknown format {default}")
        # The ``param_*`` values by their bare names, as text in ClickHouse's escaping.
        params = {k[6:]: v for k, v in request.params.items() if k.startswith("param_") and len(k) > 6}
        settings = _settings_of(request, files)
        leaves_traces = bool(files) or statement.kind not in _LEAVE_NOTHING
        with self._connections.of(request, settings, leaves_traces=leaves_traces) as (connection, mark):
            if statement.takes_rows:
                return _run_insert(connection, text, statement, rows, params)
            self._add_external_tables(connection, request, files)
            name = statement.format or default
            if statement.kind in _WITH_RESULT:
                response.headers["X-ClickHouse-Format"] = name
                response.headers["Content-Type"] = _content_type(name)
            if statement.kind == "SELECT":
                return self._select(connection, text, statement, name, params, response.write, mark)
            whole = text[: statement.end]
            if statement.kind == "DROP" and not self.engine.waits_for_drops:
                whole = _SYNC.sub(b"", whole)
            result = connection.run(whole, default, params)
            body = result.bytes()
            response.write(body)
            return _summary(result, len(body))

    def _select(
        self,
        connection: Connection,
        text: bytes,
        statement: Statement,
        result_format: str,
        params: Mapping[str, str],
        write: Callable[[bytes], None],
        mark: str,
    ) -> Summary:
        """Run a SELECT and hand its result to ``write`` piece by piece, in this thread.

        When ``write`` raises (the client is gone), the query of this ``mark`` is stopped, and the error is raised.
        """
        reading, writing = os.pipe()
        _widen(writing)
        target = b" INTO OUTFILE %s APPEND" % quote_string(descriptor_path(writing)).encode()
        if statement.format_at is not None:
            whole = text[: statement.format_at] + target + b" " + text[statement.format_at : statement.end]
        else:
            whole = text[: statement.end] + target + b" FORMAT " + result_format.encode()

        def run() -> Result:
            try:
                return connection.run(whole, "Null", params)
            finally:
                os.close(writing)

        running = self._runners.submit(run)
        size = 0
        try:
            while piece := os.read(reading, CHUNK_BYTES):
                size += len(piece)
                write(piece)
        except BaseException:
            self._kill(mark)
            raise
        finally:
            os.close(reading)
            wait([running])
        return _summary(running.result(), size)

    def _add_external_tables(self, connection: Connection, request: Request, files: Mapping[str, bytes]) -> None:
        """Make each file of the form a temporary table of this connection, which is closed after the query."""
        for field, content in files.items():
            structure = request.params.get(f"{field}_structure")
            if not structure:
                raise QueryError.make(36, "BAD_ARGUMENTS", f"External table {field} needs {field}_structure")
            rows_format = request.params.get(f"{field}_format") or "TabSeparated"
            if _NAME.match(rows_format) is None:
                raise QueryError.make(73, "UNKNOWN_FORMAT", f"Unknown format {rows_format}")
            table = quote_identifier(PurePath(field).name)
            connection.run(f"CREATE TEMPORARY TABLE {table} ({structure}) ENGINE = Memory".encode())
            if content:
                with Spool(self.spool_directory) as rows:
                    rows.write(content)
                    path = quote_string(rows.path)
                    connection.run(f"INSERT INTO {table} FROM INFILE {path} FORMAT {rows_format}", "Null")

    def _kill(self, mark: str) -> None:
        """Stop the query that carries this mark; a query that has already ended is not an error."""
        with contextlib.suppress(QueryError):
            connection = self.engine.connect()
            try:
                connection.run(
                    "KILL QUERY WHERE query_id IN (SELECT query_id FROM system.processes "
                    f"WHERE position(Settings['log_comment'], {quote_string(mark)}) > 0) ASYNC"
                )
            finally:
                connection.close()


def _statement(request: Request) -> tuple[bytes, Statement, Iterator[bytes]]:
    """The query's text, its clauses, and the body's bytes that follow the text read so far."""
    in_url = request.params.get("query", "").encode(errors="surrogateescape")
    head = in_url + b"\n" if in_url else b""
    body = request.body
    while len(head) - len(in_url) < _HEAD_BYTES and (piece := next(body, b"")):
        head += piece
    statement = analyse(head)
    if statement.takes_rows:
        rows_at = statement.rows_at or statement.end
        return head[:rows_at], statement, itertools.chain((head[rows_at:],) if head[rows_at:] else (), body)
    rest = b"".join(body)  # the whole body is query text
    return (head + rest, analyse(head + rest) if rest else statement, iter(()))


def _check(request: Request, statement: Statement, text: bytes) -> None:
    """Refuse what a server refuses before it runs anything, and what would be lost with the request's connection."""
    if not statement.kind:
        raise QueryError.make(62, "SYNTAX_ERROR", "Syntax error: failed at position 1 (end of query): Empty query")
    if statement.kind in ("SET", "USE") or (statement.kind == "CREATE" and _TEMPORARY.search(text[: statement.end])):
        raise QueryError.make(
            48,
            "NOT_IMPLEMENTED",
            f"The embedded server keeps no sessions, so {statement.kind} would have no effect: give settings and "
            "database as parameters of each request",
        )
    _refuse_files(statement)
    if request.method != "POST" and statement.kind not in _READS:
        raise QueryError.make(164, "READONLY", "Cannot execute query in readonly mode: method GET only reads, use POST")


def _refuse_files(statement: Statement) -> None:
    """Raise what a server answers to clauses that name the client's files, and to a second statement."""
    if statement.outfile:
        raise QueryError.make(358, "INTO_OUTFILE_NOT_ALLOWED", "INTO OUTFILE is not allowed")
    if statement.infile:
        raise QueryError.make(36, "BAD_ARGUMENTS", "FROM INFILE is not allowed")
    if statement.second_statement:
        raise QueryError.make(62, "SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")


def _settings_of(request: Request, external: Mapping[str, bytes]) -> dict[str, str]:
    """The parameters that are settings of the query."""
    of_tables = {f"{name}_{about}" for name in external for about in ("format", "structure")}
    found: dict[str, str] = {}
    for name, value in request.params.items():
        if name in _RESERVED or name.startswith("param_") or name in of_tables:
            continue
        if _NAME.match(name) is None:
            raise QueryError.make(115, "UNKNOWN_SETTING", f"Unknown setting '{name}'")
        found[name] = value
    return found


def _apply(connection: Connection, settings: Mapping[str, str], database: str) -> None:
    pairs = ", ".join(f"{name} = {quote_string(value)}" for name, value in settings.items())
    connection.run(f"SET {pairs}".encode(errors="surrogateescape"))
    if database:
        connection.run(f"USE {quote_identifier(database)}".encode(errors="surrogateescape"))


def _content_type(name: str) -> str:
    if name.startswith(_BYTES):
        return "application/octet-stream"
    return f"{'application/json' if name.startswith('JSON') else 'text/plain'}; charset=UTF-8"


def _run_insert(
    connection: Connection, text: bytes, statement: Statement, rows: Spool, params: Mapping[str, str]
) -> Summary:
    """Run an INSERT whose rows are in ``rows``."""
    rows_format = statement.format or "Values"
    path = quote_string(rows.path)
    if statement.input_call is not None:
        # INSERT INTO t SELECT … FROM input('structure') FORMAT F: the rows are a table of that structure.
        start, end = statement.input_call
        inside = text[text.index(b"(", start) + 1 : end - 1]
        call = f"file({path}, {quote_string(rows_format)}, ".encode() + inside + b")"
        whole = text[:start] + call + text[end : statement.end]
    else:
        at = min(x for x in (statement.settings_at, statement.format_at, statement.end) if x is not None)
        whole = b"%s FROM INFILE %s %s FORMAT %s" % (
            *(text[:at], path.encode(), text[at : statement.end], rows_format.encode()),
        )
    result = connection.run(whole, "Null", params)
    return replace(_summary(result, 0), written_rows=_count(result, "rows_written", result.rows_read))


def _widen(descriptor: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # beyond the system's limit: only speed is lost
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)


def _summary(result: Result, size: int) -> Summary:
    written = _count(result, "rows_written")
    return Summary(
        read_rows=result.storage_rows_read(),
        read_bytes=result.storage_bytes_read(),
        written_rows=written,
        written_bytes=_count(result, "bytes_written"),
        result_rows=result.rows_read() or written,
        result_bytes=size or _count(result, "bytes_written"),
        elapsed_ns=int(result.elapsed() * 1e9),
    )


def _count(result: Result, name: str, otherwise: Callable[[], int] = int) -> int:
    """The count of rows or bytes that an insert wrote. Engines before 26.7 do not say."""
    return int(getattr(result, name, otherwise)())
