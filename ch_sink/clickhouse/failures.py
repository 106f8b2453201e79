"""Translates errors of clickhouse-connect and of the network into ch_sink's."""

from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_connect.driver import exceptions as driver
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
    ResponseError,
    SSLError,
)

from ch_sink.clickhouse.retry import ACCESS_CODES, RETRYABLE_CODES, TOO_MANY_PARTS
from ch_sink.errors import AccessDenied, ClickHouseError, ClickHouseUnavailable

__all__ = ["translated"]

_LIMIT = "Raise the limit in the user's profile, or give ch_sink a user of its own: an answer in part would be wrong."
_HINTS = {
    158: _LIMIT,
    191: _LIMIT,
    307: _LIMIT,
    396: _LIMIT,
    60: "Create the table with `ch_sink init CONFIG --apply`, or correct clickhouse.database and clickhouse.table.",
    81: "Create the database with `ch_sink init CONFIG --apply`, or correct clickhouse.database.",
    241: "Lower chunk_offsets or chunk_bytes, or raise the server's memory limit.",
    349: "A column that the table computes from another one does not take its NULL: alter the expression (ifNull), or "
    "make it Nullable; then `ch_sink resume`.",
    469: "Drop the constraint (ALTER TABLE … DROP CONSTRAINT), or let deleted rows meet it, which may have their key "
    "only and defaults: CHECK (…) OR _is_deleted = 1, with the table's own mark; then `ch_sink resume`.",
    TOO_MANY_PARTS: "Merges do not keep up: raise trigger_interval or chunk_offsets, or coarsen PARTITION BY.",
}


@contextmanager
def translated(url: str, doing: str, secret: str = "") -> Iterator[None]:
    """Turn what the driver raises inside into ClickHouseError, ClickHouseUnavailable or AccessDenied.

    ``doing`` completes "could not …"; ``secret`` is masked in every text.
    """
    try:
        yield
    except driver.Error as error:
        raise _from_driver(error, url, doing, secret) from None
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise _no_answer(error, url, doing, secret) from None


def _from_driver(error: driver.Error, url: str, doing: str, secret: str) -> ClickHouseError:
    code = error.code or 0
    if code in ACCESS_CODES:
        return AccessDenied(
            f"ClickHouse at {url} refuses access, could not {doing}: {_text(error, secret)}",
            code=code,
            hint="Check clickhouse.username and the password (CH_SINK__CLICKHOUSE__PASSWORD), and the user's grants.",
        )
    if code:
        kind = ClickHouseUnavailable if code in RETRYABLE_CODES else ClickHouseError
        text = f"could not {doing}: {_text(error, secret)}"
        return kind(text, code=code, hint=_HINTS.get(code))
    cause = _root(error)
    if isinstance(cause, (HTTPError, ConnectionError, TimeoutError, OSError)):
        return _no_answer(cause, url, doing, secret)
    if isinstance(error, driver.OperationalError):  # the stream broke off, or a gateway answered 429, 503, 504
        return ClickHouseUnavailable(f"could not {doing} at {url}: {_text(error, secret)}")
    return ClickHouseError(f"could not {doing} at {url}: {_text(error, secret)}")


def _no_answer(error: BaseException, url: str, doing: str, secret: str) -> ClickHouseUnavailable:
    cause = _root(error)
    if isinstance(cause, SSLError):
        why, hint = f"TLS fails: {_text(cause, secret)}", "Check clickhouse.url (https or http), verify and ca_cert."
    elif isinstance(cause, (ReadTimeoutError, TimeoutError)) and not isinstance(cause, ConnectTimeoutError):
        why, hint = "no answer within the time limit", "Raise clickhouse.timeout, or check the server's load."
    elif isinstance(cause, (NewConnectionError, ConnectTimeoutError, ConnectionRefusedError)):
        why, hint = "no connection", "Is the server up? Check clickhouse.url."
    elif isinstance(cause, ResponseError):
        why, hint = "the proxy in front of it answers 502", "Is the server up? Check clickhouse.url."
    else:
        why, hint = f"the connection broke ({type(cause).__name__})", "Is the server up? Check clickhouse.url."
    return ClickHouseUnavailable(f"ClickHouse at {url} does not answer, could not {doing}: {why}", hint=hint)


def _root(error: BaseException) -> BaseException:
    """The innermost cause that the network layer names."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        reason = getattr(error, "reason", None)
        inner = reason if isinstance(reason, BaseException) else error.__cause__
        if inner is None:
            return error
        error = inner
    return error


def _text(error: BaseException, secret: str) -> str:
    text = str(error)
    start = text.find("server response: ")
    if start >= 0:
        text = text[start + len("server response: ") :]
        text = text.rpartition(" (for url ")[0] or text
    if secret:
        text = text.replace(secret, "***")
    return text.strip().rstrip(".")
