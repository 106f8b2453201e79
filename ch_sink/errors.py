"""Every error that ch_sink raises on purpose.

    ChSinkError
    ├── ConfigError              a file, key or flag is wrong                      (exit code 2)
    ├── TableError               the target table cannot be served
    │   └── TableNotFound        no such table or view
    ├── KafkaError               the source of records
    │   ├── BrokerUnavailable    no broker answers
    │   ├── TopicNotFound        the topic does not exist
    │   └── DataLoss             offsets that were to be read are gone
    ├── RegistryError            the schema registry refuses or lacks a schema
    │   └── RegistryUnavailable  the schema registry does not answer
    ├── RecordError              one record cannot be decoded or applied
    │   ├── DecodeError          its bytes are not a change event of this table
    │   └── PositionError        its source position does not fit or cannot be read
    ├── ClickHouseError          the server answered with an error; ``code`` is its number
    │   ├── ClickHouseUnavailable   no answer, or an answer that a retry may change
    │   └── AccessDenied         wrong user, password or missing grant
    ├── SourceError              the source database does not answer, refuses, or lacks the table
    ├── LedgerConflict           another job runs the same stream
    │   └── Superseded           another execution of the same task took its work over
    ├── TakenBack                the ledger was restored to an earlier state while its owner worked
    ├── SparkLost                Spark itself stopped working, which says nothing about any stream
    ├── StreamFailed             the stream stops: what policy or the data demanded
    └── StreamsFailed            several streams of a job stopped; ``failures`` has the error of each

An error carries ``temporary``, whether waiting may help, ``hint``, the next step for the reader, and the process's
exit code. Texts name the file, key, record or column concerned and never a secret.
"""

import re
import textwrap
from collections.abc import Mapping
from copy import copy
from typing import Self

REFILL = (
    "Fill the table again with `ch_sink resync CONFIG --apply`, or empty it and take a new snapshot: a snapshot "
    "alone leaves the rows whose deletes were lost"
)
"""The step that makes a table equal again after records were lost."""
REFILL_STORED = "Rows stored until then keep their values: `ch_sink resync CONFIG --apply` fills them again."
"""The step behind one that concerns the rows to come only."""
READ_AGAIN = "Retention removed records while the topic was read: run the command again."
"""The next step where a command, and not the stream, misses records."""


class ChSinkError(Exception):
    """The root. ``str(error)`` is one or two sentences; ``hint`` says what to do next."""

    exit_code: int = 1
    temporary = False
    """Waiting may help: a server is unavailable or busy."""
    setting = ""
    """The key of the configuration that settles it, as a line of YAML, such as ``engine: append``."""
    denied = False
    """Kafka or the schema registry refuses the user. What helps, a right or another password, is not seen from here."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def about(self, what: str, *, hint: str | None = None) -> Self:
        """The same error with what it is about in front. ``hint`` instead of the error's own, if there is one."""
        error = copy(self)
        error.message, error.hint = f"{what}: {self.message}", hint or self.hint
        error.args = (error.message,)
        return error

    def settled_by(self, setting: str) -> Self:
        """The same error with its `setting`."""
        error = copy(self)
        error.setting = setting
        return error

    def of_one_topic(self, topic: str) -> Self:
        """The same error of a file of many topics: the hint ends with the exception to paste, if one settles it."""
        error = copy(self)
        if self.setting:
            lines = (f"  - match: {re.escape(topic)}", f"    {self.setting}")
            error.hint = "\n".join(((self.hint or "") + " As an exception for this topic:", "tables:", *lines)).strip()
        return error

    def __reduce__(self) -> tuple[object, ...]:
        # Spark ships a task's error to the driver by pickle: attributes set later must survive.
        return (_rebuild, (type(self), self.message, self.__dict__.copy()))


def _rebuild(cls: type[ChSinkError], message: str, state: dict[str, object]) -> ChSinkError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConfigError(ChSinkError):
    """A configuration file, key, environment variable or flag is wrong."""

    exit_code = 2


class TableError(ChSinkError):
    """The target table cannot be served."""


class TableNotFound(TableError):
    """The target table does not exist."""


class KafkaError(ChSinkError):
    """The source of records failed."""


class AccessRefused(KafkaError):
    """The broker refuses the user."""

    denied = True


class BrokerUnavailable(KafkaError):
    """No broker answered."""

    temporary = True


class TopicNotFound(KafkaError):
    """The topic does not exist."""


class DataLoss(KafkaError):
    """Offsets that were to be read are no longer in the topic."""


class RegistryError(ChSinkError):
    """The schema registry cannot be reached, refuses, or does not know a schema."""


class RegistryRefused(RegistryError):
    """The schema registry refuses the user."""

    denied = True


class RegistryUnavailable(RegistryError):
    """The schema registry does not answer, or answers that it cannot serve at the moment."""

    temporary = True


class RecordError(ChSinkError):
    """One record cannot be decoded or applied; it becomes a dead letter or stops the stream."""


class DecodeError(RecordError):
    """The record's bytes are not a change event of this table. ``column`` names the column, if one is to blame."""

    def __init__(self, message: str, *, column: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.column = column


class PositionError(RecordError):
    """The record's source position cannot be read or does not fit its bits."""


class ClickHouseError(ChSinkError):
    """The server answered with an error. ``code`` is ClickHouse's error number, 0 when it gave none."""

    def __init__(self, message: str, *, code: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ClickHouseUnavailable(ClickHouseError):
    """No answer, or an error that a later attempt may not meet."""

    temporary = True


class AccessDenied(ClickHouseError):
    """Wrong user or password, or a grant is missing."""


class LedgerConflict(ChSinkError):
    """Another job works on the same stream."""

    run_id = ""
    """The run that has the stream, where it is known."""


class Superseded(LedgerConflict):
    """A newer execution of the same task, under the same claim, took its work over: the job plans the work again."""


class TakenBack(ChSinkError):
    """The ledger lacks what its owner has written: a backup was restored. Whoever opens the stream again reads it."""

    temporary = True


class SparkLost(ChSinkError):
    """Spark runs no tasks any more. The job ends, and records nothing about its streams."""


class SourceError(ChSinkError):
    """The source database does not answer, refuses, or has no such table."""


class StreamFailed(ChSinkError):
    """The stream stops because a policy or the data demand it."""


class StreamsFailed(ChSinkError):
    """Several streams of a job stopped. ``failures``: stream → its error."""

    def __init__(self, failures: Mapping[str, ChSinkError]) -> None:
        lines = ["a stream failed:" if len(failures) == 1 else f"{len(failures)} streams failed:"]
        for stream, error in failures.items():
            lines.append(f"  {stream}: {error}")
            if error.hint:
                lines += textwrap.indent(f"next: {error.hint}", "    ").splitlines()
        super().__init__("\n".join(lines))
        self.failures = dict(failures)
        self.exit_code = max(error.exit_code for error in failures.values())


def in_one_line(*sentences: str | None) -> str:
    """An error, its next step and what else there is to say, as sentences of a line of the log."""
    return " ".join(s if s.endswith((".", "!", "?")) else f"{s}." for s in sentences if s)
