"""One query over HTTP, from the request to its answer."""

from __future__ import annotations

import contextlib
import itertools
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ch_sink.local.clickhouse import http_encoding
from ch_sink.local.clickhouse.engine import Connection, Engine
from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.http_form import boundary_of, read_form
from ch_sink.local.clickhouse.http_request import Request
from ch_sink.local.clickhouse.http_response import DEFAULT_BUFFER_BYTES, Response, Summary
from ch_sink.local.clickhouse.idle_connections import IdleConnections
from ch_sink.local.clickhouse.native_blocks import BlockEncoder, decode_blocks
from ch_sink.local.clickhouse.query_context import connection_for, kill, query_params, settings_of, with_external_tables
from ch_sink.local.clickhouse.query_run import refuse_files, run_insert, run_select, run_whole
from ch_sink.local.clickhouse.row_policies import RowPolicies
from ch_sink.local.clickhouse.row_policy_sql import PolicyStatement, parse_policy_statement
from ch_sink.local.clickhouse.sessions import Sessions
from ch_sink.local.clickhouse.spool import Spool
from ch_sink.local.clickhouse.sql_text import Statement, analyse, quote_string

__all__ = ["QueryService"]

_HEAD_BYTES = 256 << 10  # how far a query may reach into the body before the rows begin: max_query_size's default
_READS = {"SELECT", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK", "SET", "USE", "WATCH"}
_SYNC = re.compile(rb"\s+SYNC[\s;]*$", re.IGNORECASE)
_LEAVE_NOTHING = {"SELECT", "INSERT", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN"}
"""Statements after which their connection is as it was before, settings of their own included (tried on 26.9)."""
_WITH_RESULT = {
    "SELECT",
    "SHOW",
    "DESCRIBE",
    "DESC",
    "EXISTS",
    "EXPLAIN",
    "CHECK",
    "KILL",
    "WATCH",
    "BACKUP",
    "RESTORE",
}
_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNames": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNamesAndTypes": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "Values": "text/plain; charset=UTF-8",
    "Vertical": "text/plain; charset=UTF-8",
    "Pretty": "text/plain; charset=UTF-8",
    "XML": "application/xml; charset=UTF-8",
}


@dataclass
class QueryService:
    """Answers queries of one engine."""

    engine: Engine
    sessions: Sessions
    idle: IdleConnections
    policies: RowPolicies
    spool_directory: Path

    def serve(self, request: Request, response: Response) -> None:
        """Run the request's query. Raises QueryError with the error for the client."""
        query_id = request.params.get("query_id") or request.header("X-ClickHouse-Query-Id") or str(uuid.uuid4())
        response.headers["X-ClickHouse-Query-Id"] = query_id
        if request.params.get("session_timezone"):
            response.headers["X-ClickHouse-Timezone"] = request.params["session_timezone"]
        self._set_up(request, response)
        with contextlib.ExitStack() as stack:
            files = self._read_form(request, stack)
            text, statement, rest = self._statement(request)
            _check(request, statement, text)
            policy = parse_policy_statement(
                text[: statement.end if statement.format_at is None else statement.format_at]
            )
            if policy is not None:
                text = self._policy_statement(request, policy)
                if text and statement.format is not None:
                    text += b" FORMAT " + statement.format.encode()
                statement = analyse(text)
            # The body is complete before the engine runs: a slow client delays nobody, and one that leaves in
            # mid-body has inserted nothing.
            rows = stack.enter_context(self._spool())
            rows.fill(rest)
            with self.engine.use():
                summary = self._run(request, response, text, statement, rows, files) if text else Summary()
        # Only now does the client see the end: its session is free for its next query.
        response.finish(summary)

    def close_connections(self) -> None:
        """Close all connections; no request may be running."""
        self.sessions.close_all()
        self.idle.close_all()

    def _connection(
        self, request: Request, settings: dict[str, str], *, leaves_traces: bool
    ) -> contextlib.AbstractContextManager[tuple[Connection, str]]:
        return connection_for(request, self.engine, self.sessions, self.idle, settings, leaves_traces=leaves_traces)

    def _policy_statement(self, request: Request, policy: PolicyStatement) -> bytes:
        """Carry out a row policy statement; what it returns is the query for its result, if it has one."""
        with self.engine.use():
            settings = settings_of(request, {})
            with self._connection(request, settings, leaves_traces=False) as (connection, _):
                ((database,),) = connection.values("SELECT currentDatabase()")
                if policy.condition:
                    query = quote_string(f"SELECT {policy.condition}")
                    connection.run(f"SELECT formatQuery({query})".encode(errors="surrogateescape"))
        if policy.verb.startswith("SHOW"):
            return self.policies.answer(policy, database).encode(errors="surrogateescape")
        self.policies.change(policy, database, lambda xml: self.engine.reopen(xml, self.close_connections))
        return b""

    def _run(
        self,
        request: Request,
        response: Response,
        text: bytes,
        statement: Statement,
        rows: Spool,
        files: dict[str, Spool],
    ) -> Summary:
        default = request.params.get("default_format") or request.header("X-ClickHouse-Format") or "TabSeparated"
        if not default.isalnum():
            raise QueryError.make(73, "UNKNOWN_FORMAT", f"Unknown format {default}")
        params = query_params(request)
        settings = settings_of(request, files)
        leaves_traces = bool(files) or statement.kind not in _LEAVE_NOTHING
        with self._connection(request, settings, leaves_traces=leaves_traces) as (connection, mark):
            if statement.takes_rows:
                return run_insert(connection, text, statement, rows, params)
            with with_external_tables(connection, request, files):
                name = statement.format or default
                if statement.kind in _WITH_RESULT:
                    response.headers["X-ClickHouse-Format"] = name
                    response.headers["Content-Type"] = _CONTENT_TYPES.get(name, "application/octet-stream")
                if statement.kind == "SELECT":
                    return run_select(
                        connection, text, statement, name, params, response.write, lambda: kill(self.engine, mark)
                    )
                whole = text[: statement.end]
                if statement.kind == "DROP" and not self.engine.waits_for_drops:
                    whole = _SYNC.sub(b"", whole)
                body, summary = run_whole(connection, whole, default, params)
                response.write(body)
                return summary

    def _spool(self) -> Spool:
        return Spool(self.spool_directory)

    def _read_form(self, request: Request, stack: contextlib.ExitStack) -> dict[str, Spool]:
        boundary = boundary_of(request.header("Content-Type"))
        if boundary is None or request.method != "POST":
            return {}
        params, files = read_form(request.body, boundary, self._spool)
        for spool in files.values():
            stack.callback(spool.close)
        request.params.update(params)
        request.body = iter(())
        return files

    def _statement(self, request: Request) -> tuple[bytes, Statement, Iterator[bytes]]:
        """The query's text, its clauses, and the body's bytes that follow the text read so far."""
        in_url = request.params.get("query", "").encode(errors="surrogateescape")
        head = in_url + b"\n" if in_url else b""
        body = request.body
        while len(head) - len(in_url) < _HEAD_BYTES and (piece := next(body, b"")):
            head += piece
        statement = analyse(head)
        if not statement.takes_rows:
            head += b"".join(body)  # the whole body is query text
            statement = analyse(head)
        if statement.takes_rows:
            rows_at = statement.rows_at or statement.end
            return head[:rows_at], statement, itertools.chain((head[rows_at:],) if head[rows_at:] else (), body)
        return head, statement, iter(())

    def _set_up(self, request: Request, response: Response) -> None:
        """Buffering and compression of the answer as the request asks."""
        response.new_spool = self._spool
        if request.flag("wait_end_of_query") or request.flag("http_wait_end_of_query"):
            response.buffer_bytes = None
        else:
            size = request.params.get("buffer_size") or request.params.get("http_response_buffer_size") or ""
            response.buffer_bytes = int(size) if size.isdigit() and int(size) else DEFAULT_BUFFER_BYTES
        if request.flag("decompress"):
            verify = not request.flag("http_native_compression_disable_checksumming_on_decompress")
            request.body = decode_blocks(request.body, verify=verify)
        if request.flag("compress"):
            response.encoder = BlockEncoder()
            return
        accepted = request.header("Accept-Encoding")
        if accepted and request.flag("enable_http_compression", default=True):
            response.encoding = http_encoding.choose(accepted)
            if response.encoding is not None:
                response.encoder = http_encoding.encoder(response.encoding)


def _check(request: Request, statement: Statement, text: bytes) -> None:
    """Refuse what a server refuses before it runs anything."""
    if not statement.kind:
        raise QueryError.make(62, "SYNTAX_ERROR", "Syntax error: failed at position 1 (end of query): Empty query")
    refuse_files(statement, text, request.params)
    if request.method != "POST" and statement.kind not in _READS:
        raise QueryError.make(
            164,
            "READONLY",
            "Cannot execute query in readonly mode. For queries over HTTP, method GET implies readonly. You should use "
            "method POST for modifying queries",
        )
