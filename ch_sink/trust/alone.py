"""One command that writes is at a stream's table at a time, on whichever host.

A command notes in the ledger that it begins, and looks whether others have begun and not ended. Of two that begin at
the same moment at least one sees the other, and whoever sees another one refuses. A command whose process has died has
ended; only its own host can see that, so on other hosts a person has to say it.

The stream goes on meanwhile, unless the command lets it stand still (`ch_sink.stream.standing.held`).
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ch_sink.config import Config
from ch_sink.discovery.wiring import client_of, ledger_of
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.ports import Command, Ledger
from ch_sink.stream.claims import born, runs
from ch_sink.trust.topic import Check, never_stops
from ch_sink.types.sql import literal, quote

# Commands of this process: it may have threads that work on the same table.
_mine: set[str] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands at one table."""

    ledger: Ledger
    table: str
    remedy: str
    """SQL that ends them all, whatever has become of them."""

    @classmethod
    def of(cls, config: Config) -> "Commands":
        """Those at the table of a configuration's stream. Raises ClickHouseUnavailable, AccessDenied."""
        place = config.clickhouse
        book = f"{quote(config.state_database)}.{quote(config.state_tables.ledger)}"
        end = f"ALTER TABLE {book} DELETE WHERE stream = {literal(config.stream_name)} AND entry = 'command'"
        return cls(ledger_of(config, client_of(config)), f"{place.database}.{place.table}", end)

    @contextmanager
    def alone(self, what: str) -> Iterator[Check]:
        """No other command begins to write until the context ends. Gives a check that this still holds.

        Raises StreamFailed, as does the check, ClickHouseError.
        """
        me, now = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        own = Command(uuid.uuid4().hex[:12], what, socket.gethostname(), me, born(me), now)
        with _lock:
            _mine.add(own.id)
        try:
            self.ledger.note(own)
            self.expect_none(own)
            self._expect_known(own)
            yield lambda: self._expect_known(own)
        finally:
            with _lock:
                _mine.discard(own.id)
            with suppress(ChSinkError):  # what ended the command is the error to show
                self.ledger.note(replace(own, ended=True))

    def expect_none(self, own: Command | None = None) -> None:
        """Raises StreamFailed if another command writes to the table, ClickHouseError."""
        for other in self._begun():
            if own is not None and other.id == own.id:
                continue
            here = other.host == socket.gethostname()
            if here and not _lives(other):
                continue
            gone = "" if here else f" If its process is gone, say so: {self.remedy}"
            raise StreamFailed(
                f"{other.what} writes to {self.table} since {other.since}: process {other.pid} on host {other.host}",
                hint=f"Wait until it ends{', or stop it' if here else ''}.{gone}",
            )

    def _expect_known(self, own: Command) -> None:
        if own not in self._begun():
            raise StreamFailed(
                f"the ledger does not know any more that {own.what} writes to {self.table}, so another command may",
                hint="Run it again.",
            )

    def _begun(self) -> list[Command]:
        """The commands that have not ended."""
        known = self.ledger.facts(Command)
        ended = {command.id for command in known if command.ended}
        return [command for command in known if command.id not in ended]


@contextmanager
def alone(config: Config, what: str, *, apply: bool) -> Iterator[Check]:
    """With ``apply``, the command is alone at the stream's table: see `Commands.alone`."""
    if not apply:
        yield never_stops
        return
    with Commands.of(config).alone(what) as still_alone:
        yield still_alone


def _lives(command: Command) -> bool:
    """Whether the process of a command of this host works on it."""
    if not runs(command.pid, command.born):
        return False
    if command.pid != os.getpid():
        return True
    with _lock:
        return command.id in _mine
