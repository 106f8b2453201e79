"""Running one statement: rows in from a spool, rows out through a pipe, and the counts of both.

An INSERT's rows come ``FROM INFILE`` of the spooled body and a SELECT's result goes ``INTO OUTFILE`` of a pipe that
this process reads, so that the engine formats and parses every FORMAT itself and nothing large is held in memory.
Other statements are small and return their result whole.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from ch_sink.local.clickhouse.engine import Connection, Result
from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.http_response import Summary
from ch_sink.local.clickhouse.spool import CHUNK_BYTES, Spool, descriptor_path
from ch_sink.local.clickhouse.sql_text import Statement, leads_outside, quote_string

__all__ = ["refuse_files", "run_insert", "run_select", "run_whole"]


def refuse_files(statement: Statement, text: bytes, parameters: Mapping[str, str]) -> None:
    """Raise what a server answers to clauses that name the client's files, and to ways out of the data directory.

    A server bounds the paths that queries may name; the embedded engine does not.
    """
    if statement.outfile:
        raise QueryError.make(358, "INTO_OUTFILE_NOT_ALLOWED", "INTO OUTFILE is not allowed")
    if statement.infile:
        raise QueryError.make(
            36, "BAD_ARGUMENTS", "Query has infile and was send directly to server, which is not allowed"
        )
    if (way := leads_outside(text, parameters)) is not None:
        raise QueryError.make(497, "ACCESS_DENIED", f"Not enough privileges: {way} leads out of the data directory")
    if statement.second_statement:
        raise QueryError.make(62, "SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")


def run_whole(
    connection: Connection, text: bytes, default_format: str, params: Mapping[str, str]
) -> tuple[bytes, Summary]:
    """Run a statement whose result is small."""
    result = connection.run(text, default_format, params)
    body = result.bytes()
    return body, _summary(result, len(body))


def run_insert(
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


def run_select(
    connection: Connection,
    text: bytes,
    statement: Statement,
    result_format: str,
    params: Mapping[str, str],
    write: Callable[[bytes], None],
    on_abandon: Callable[[], None],
) -> Summary:
    """Run a SELECT and hand its result to ``write`` piece by piece, in this thread.

    When ``write`` raises (the client is gone), ``on_abandon`` is called to stop the query, and the error is raised.
    """
    reading, writing = os.pipe()
    _widen(writing)
    target = b" INTO OUTFILE %s APPEND" % quote_string(descriptor_path(writing)).encode()
    if statement.format_at is not None:
        whole = text[: statement.format_at] + target + b" " + text[statement.format_at : statement.end]
    else:
        whole = text[: statement.end] + target + b" FORMAT " + result_format.encode()
    outcome: list[Result | QueryError] = []
    runner = threading.Thread(target=_run_into, args=(connection, whole, params, writing, outcome), daemon=True)
    runner.start()
    size = 0
    try:
        while piece := os.read(reading, CHUNK_BYTES):
            size += len(piece)
            write(piece)
    except BaseException:
        on_abandon()
        raise
    finally:
        os.close(reading)
        runner.join()
    (result,) = outcome
    if isinstance(result, QueryError):
        raise result
    return _summary(result, size)


def _run_into(
    connection: Connection, text: bytes, params: Mapping[str, str], writing: int, outcome: list[Result | QueryError]
) -> None:
    try:
        outcome.append(connection.run(text, "Null", params))
    except QueryError as error:
        outcome.append(error)
    except BaseException as error:  # noqa: BLE001 — raised again in the request's thread
        outcome.append(QueryError.from_engine(error))
    finally:
        os.close(writing)


def _widen(descriptor: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
        except OSError:
            return  # the system's limit is lower: only speed is lost


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
    """What an insert wrote. Engines before 26.7 do not say."""
    return int(getattr(result, name, otherwise)())
