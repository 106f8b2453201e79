"""Failed requests: which error of the product each one is, and which are worth a retry.

Errors of clickhouse-connect and of the network are distinguished by code, never by text.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from clickhouse_connect.driver import exceptions as driver
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
    ResponseError,
    SSLError,
)

from ch_sink.errors import AccessDenied, ClickHouseError, ClickHouseUnavailable

T = TypeVar("T")

TOO_MANY_PARTS = 252

RETRYABLE_CODES = frozenset(
    {
        3,  # UNEXPECTED_END_OF_FILE
        32,  # ATTEMPT_TO_READ_AFTER_EOF
        107,  # FILE_DOESNT_EXIST
        159,  # TIMEOUT_EXCEEDED
        198,  # DNS_ERROR
        201,  # QUOTA_EXCEEDED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        203,  # NO_FREE_CONNECTION
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        216,  # QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING
        225,  # NO_ZOOKEEPER
        236,  # ABORTED: the server is shutting down, or merges are stopped
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        244,  # UNEXPECTED_ZOOKEEPER_ERROR
        TOO_MANY_PARTS,
        254,  # NO_ACTIVE_REPLICAS
        265,  # NO_AVAILABLE_REPLICA
        279,  # ALL_CONNECTION_TRIES_FAILED
        285,  # TOO_FEW_LIVE_REPLICAS
        286,  # UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
        289,  # REPLICA_IS_NOT_IN_QUORUM
        319,  # UNKNOWN_STATUS_OF_INSERT
        364,  # RECEIVED_ERROR_TOO_MANY_REQUESTS
        394,  # QUERY_WAS_CANCELLED: also by a server that is shutting down
        410,  # EXTERNAL_SERVER_IS_NOT_RESPONDING
        415,  # ALL_REPLICAS_LOST
        416,  # REPLICA_STATUS_CHANGED
        425,  # SYSTEM_ERROR
        439,  # CANNOT_SCHEDULE_TASK
        473,  # DEADLOCK_AVOIDED
        499,  # S3_ERROR
        519,  # NO_REMOTE_SHARD_AVAILABLE
        529,  # NOT_A_LEADER
        568,  # RAFT_ERROR
        574,  # DISTRIBUTED_TOO_MANY_PENDING_BYTES
        667,  # NOT_INITIALIZED
        692,  # TOO_MANY_MUTATIONS
        696,  # ASYNC_LOAD_CANCELED
        700,  # USER_SESSION_LIMIT_EXCEEDED
        722,  # ASYNC_LOAD_WAIT_FAILED
        733,  # TABLE_IS_BEING_RESTARTED
        738,  # PART_IS_LOCKED
        745,  # SERVER_OVERLOADED
        999,  # KEEPER_EXCEPTION
    }
)
"""Errors that another attempt may not meet, because they are about the server's moment and not about the statement."""

ACCESS_CODES = frozenset(
    {
        164,  # READONLY: the user's profile forbids writing; a table that is read-only is 242
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        194,  # REQUIRED_PASSWORD
        195,  # IP_ADDRESS_NOT_ALLOWED
        291,  # DATABASE_ACCESS_DENIED
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    }
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with full jitter. Times in seconds.

    ``attempts`` counts the first one too. After "too many parts" the wait is ``slow_factor`` times longer: merges need
    time, and more inserts make it worse. A longer outage is handled by the job.
    """

    attempts: int = 5
    first_wait: float = 0.2
    longest_wait: float = 30.0
    slow_factor: float = 10.0
    patience: float = 60.0
    """No further attempt begins later than this: whoever shares a call with a frozen server waits for it, too."""
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False)

    def run(
        self,
        act: Callable[[], T],
        *,
        on_retry: Callable[[ClickHouseError, float], None] | None = None,
    ) -> T:
        """Call ``act`` until it succeeds. ``on_retry`` gets the error and the wait in seconds before each repeat.

        Raises the last ClickHouseUnavailable once the attempts or the patience are used up, any other error at once.
        """
        attempt, began = 0, time.monotonic()
        while True:
            attempt += 1
            try:
                return act()
            except ClickHouseUnavailable as error:
                if attempt >= self.attempts or time.monotonic() - began > self.patience:
                    raise
                wait = self.wait(attempt, error.code)
                if on_retry is not None:
                    on_retry(error, wait)
            self.sleep(wait)

    def wait(self, attempt: int, code: int) -> float:
        """Seconds before the attempt after the ``attempt``-th."""
        ceiling = min(self.first_wait * 2.0 ** (attempt - 1), self.longest_wait)
        if code == TOO_MANY_PARTS:
            ceiling = min(ceiling * self.slow_factor, self.longest_wait)
            return ceiling * random.uniform(0.5, 1.0)
        return ceiling * random.uniform(0.1, 1.0)


_LIMIT = "Raise the limit in the user's profile, or give ch_sink its own user: a partial answer would be wrong."
_HINTS = {
    158: _LIMIT,
    191: _LIMIT,
    307: _LIMIT,
    396: _LIMIT,
    60: "Create the table with `ch_sink init CONFIG --apply`, or correct clickhouse.database and clickhouse.table.",
    81: "Create the database with `ch_sink init CONFIG --apply`, or correct clickhouse.database.",
    241: "Lower chunk_offsets or chunk_bytes, or raise the server's memory limit.",
    349: "A computed column does not accept the NULL of the column it is computed from: use ifNull in its "
    "expression, or make it Nullable; then `ch_sink resume`.",
    469: "Drop the constraint (ALTER TABLE … DROP CONSTRAINT), or make it accept deleted rows, which may have "
    "only their key and defaults: CHECK (…) OR _is_deleted = 1, with the table's own column; then `ch_sink resume`.",
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
        why, hint = "the proxy in front of it answered 502", "Is the server up? Check clickhouse.url."
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
