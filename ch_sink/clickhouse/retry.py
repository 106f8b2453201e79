"""Which server errors are worth a retry, and how long to wait for it. Decided by code, never by text."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ch_sink.errors import ClickHouseError, ClickHouseUnavailable

__all__ = ["ACCESS_CODES", "RETRYABLE_CODES", "TOO_MANY_PARTS", "Retry"]

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
    time, and more inserts make it worse. A server that is away for longer is waited for by the job.
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
