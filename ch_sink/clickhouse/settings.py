"""Settings of the connection, and failed requests: which error of the product each is, which are worth a retry.

Errors of clickhouse-connect and of the network are distinguished by code, never by text. The settings are those under
which a query means what it says, whatever the user's profile has: profiles may cut answers short instead of failing,
answer from a cache, leave out rows, or give other results for no rows. A lookup then finds less than there is, and a
comparison calls rows missing or equal that are not.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

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
_COLUMN_GONE = (
    "If the table has lost the column while the stream was open, and the source, too: `ch_sink resume CONFIG`. If the "
    "source has it, name it in columns.exclude and resume, or get it back filled: `ch_sink resync CONFIG --apply`."
)
_HINTS = {
    158: _LIMIT,
    191: _LIMIT,
    307: _LIMIT,
    396: _LIMIT,
    16: _COLUMN_GONE,
    47: _COLUMN_GONE,
    60: "Create the table with `ch_sink init CONFIG --apply`, or correct clickhouse.database and clickhouse.table.",
    81: "Create the database with `ch_sink init CONFIG --apply`, or correct clickhouse.database.",
    392: "The cluster has no Keeper, which ON CLUSTER needs: run the statement on each server without ON CLUSTER, and "
    "then this again.",
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


_LIMITS = ("read", "group_by", "sort", "result", "timeout", "set", "join", "distinct", "transfer")

PLAIN_MEANING: Mapping[str, str | int] = {
    # Too much is an error, not an answer in part.
    **{f"{name}_overflow_mode": "throw" for name in _LIMITS},
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "skip_unavailable_shards": 0,
    "limit": 0,
    "offset": 0,
    # What is stored now, all of it, and nothing that was deleted.
    "use_query_cache": 0,
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "apply_deleted_mask": 1,
    "lightweight_deletes_sync": 2,
    # No rows have a count, and a sum.
    "empty_result_for_aggregation_by_empty_set": 0,
    "aggregate_functions_null_for_empty": 0,
    "join_use_nulls": 0,
    # A time without a zone is the server's.
    "session_timezone": "",
    # Behind a Distributed table without a sharding key a row has no shard of its own.
    "insert_distributed_one_random_shard": 0,
    # The sink's own tables have the types that are written.
    "data_type_default_nullable": 0,
    # JSON is read as text: a number in quotes would be a text when it is inserted again.
    **{f"output_format_json_quote_{name}": 0 for name in ("64bit_integers", "64bit_floats", "decimals", "denormals")},
    # A text in JSON stays the text that it is.
    "input_format_try_infer_dates": 0,
    "input_format_try_infer_datetimes": 0,
    "input_format_json_try_infer_numbers_from_strings": 0,
    # A description has one row for each column.
    "describe_include_subcolumns": 0,
    "describe_include_virtual_columns": 0,
    # The driver reads names of types.
    "output_format_native_encode_types_in_binary_format": 0,
    # An INSERT … SELECT without a token is not refused.
    "deduplicate_insert_select": "enable_when_possible",
}
"""Each with its default."""
EVERY_TYPE: Mapping[str, str | int] = {
    "allow_suspicious_low_cardinality_types": 1,
    "allow_suspicious_fixed_string_types": 1,
    "allow_suspicious_variant_types": 1,
    "allow_suspicious_types_in_group_by": 1,
    "allow_suspicious_types_in_order_by": 1,
    "allow_experimental_variant_type": 1,
    "allow_experimental_dynamic_type": 1,
    "allow_experimental_json_type": 1,
    "enable_json_type": 1,
    # Off up to 26.3.
    "allow_experimental_nullable_tuple_type": 1,
    "enable_time_time64_type": 1,
}
"""For statements that name a table's types: it has them already."""
CUTTING = ("limit", "offset")
"""Those that hold for any question: they are sent from the first one on."""


def to_send(known: Mapping[str, str], own: Mapping[str, str | int]) -> dict[str, str | int]:
    """Those that have to be sent along.

    Args:
        known: the settings of this user on this server.
        own: the settings that the configuration names.
    """
    return {
        name: value
        for name, value in PLAIN_MEANING.items()
        if name in known and (known[name] != str(value) or name in own)
    }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of the URL."""

    interface: Literal["http", "https"]
    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """Connection settings of one stream; hashable, picklable, and never shown with the password. Times in seconds."""

    url: str = "http://localhost:8123"
    database: str = "default"
    """Database of tables that are named without one; it need not exist to connect."""
    username: str = "default"
    password: str = field(default="", repr=False)
    settings: tuple[tuple[str, str], ...] = ()
    """ClickHouse settings sent with every query; those that exactly-once inserts depend on cannot be overridden."""
    connect_timeout: float = 10.0
    timeout: float = 300.0
    """Of one request."""
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    """Of the Arrow buffers that are sent."""
    verify: bool = True
    ca_cert: str | None = None
    client_cert: str | None = None
    client_cert_key: str | None = field(default=None, repr=False)
    http_proxy: str | None = field(default=None, repr=False)
    retry: Retry = field(default_factory=Retry)
    server: str = ""
    """The name of the only server whose answers count; empty for any."""

    @property
    def endpoint(self) -> Endpoint:
        """The URL's parts; the configuration has checked it."""
        parts = urlsplit(self.url)
        interface: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        return Endpoint(
            interface, parts.hostname or "", parts.port or (8443 if parts.scheme == "https" else 8123), parts.path
        )
