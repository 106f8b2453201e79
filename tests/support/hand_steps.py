"""What happens to a stream of hand-written events besides its commands, and a stand-in for its source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import Successor
from tests.support.hand_commands import Hand
from tests.support.hand_tables import insert

__all__ = [
    "EVENTS",
    "LACKS",
    "Rows",
    "backup",
    "comment_of",
    "empty",
    "expect_refused",
    "forget",
    "killed",
    "left_tables",
    "lose",
    "plant",
    "position",
    "put_back",
    "repaired_from_source",
    "restore",
    "trim",
]

LACKS = "lacks rows that the stream has stored"
EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), insert(4, "d", 130), insert(5, "e", 140)]


@dataclass
class Rows:
    """A source with these rows."""

    now: Sequence[tuple[int | str | None, ...]]
    settles: int = 0
    """The position below which every change is in the rows; 0 if the source does not tell."""
    then: Callable[[], None] = lambda: None
    """Called while the rows are read."""
    types: Mapping[str, str] = field(default_factory=lambda: {"id": "bigint", "v": "varchar"})
    """Of its columns."""

    def position(self) -> int:
        self.then()
        return 0

    def settled(self, patience: float) -> int:
        return self.settles

    def columns(self) -> dict[str, str]:
        return dict(self.types)

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Any, ...]]]:
        own = {name: place for place, name in enumerate(self.types)}
        yield [tuple(None if r[own[n]] is None else str(r[own[n]]) for n in names) for r in self.now]

    def close(self) -> None:
        pass


def position(pos: int) -> int:
    """The position of an event of `mysql` as ch_sink counts it."""
    return 3 << 40 | pos


def backup(it: Hand) -> None:
    it.client.command(f"CREATE TABLE {it.database}.backup AS {it.database}.t")
    it.client.command(f"INSERT INTO {it.database}.backup SELECT * FROM {it.database}.t")


def restore(it: Hand) -> None:
    empty(it)
    it.client.command(f"INSERT INTO {it.database}.t SELECT * FROM {it.database}.backup")


def empty(it: Hand) -> None:
    it.client.command(f"TRUNCATE TABLE {it.database}.t")


def lose(it: Hand, *ids: int) -> None:
    """Rows go, and nobody knows why."""
    listed = ", ".join(map(str, ids))
    it.client.command(f"ALTER TABLE {it.database}.t DELETE WHERE id IN ({listed}) SETTINGS mutations_sync = 2")


def put_back(it: Hand, id_: int) -> None:
    """A row is again what it was when the backup was made."""
    lose(it, id_)
    it.client.command(f"INSERT INTO {it.database}.t SELECT * FROM {it.database}.backup WHERE id = {id_}")


def trim(it: Hand, end: int) -> None:
    """The topic no longer holds its records below this offset."""
    it.topic([])
    it.feed.ends[0] = end


def repaired_from_source(it: Hand, *rows: tuple[int, str | None]) -> None:
    """A repair makes the table these rows of the source."""
    it.source = Rows(rows)
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert (done.left, done.too_new, done.unremovable) == (0, 0, 0)
    assert it.view() == sorted(rows)


def plant(it: Hand, id_: int, like: int) -> None:
    """A row appears as a copy of another one, and nobody knows why."""
    own = f"(SELECT * FROM {it.database}.t WHERE id = {like} LIMIT 1)"
    it.client.command(f"INSERT INTO {it.database}.t SELECT * REPLACE({id_} AS id) FROM {own}")


def forget(it: Hand) -> None:
    """The ledger is lost."""
    it.feed.book._book = MemoryLedger(it.feed.name)._book


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, place: object, step: str) -> Iterator[None]:
    """A command that is killed where it calls this method of a class or an object: it does not even clear up."""

    def kill(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(place, step, kill)
        patched.setattr(Successor, "drop", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            yield


def expect_refused(it: Hand, why: str, command: str) -> None:
    """The stream does not start, and says which command repairs that."""
    with pytest.raises(StreamFailed, match=why) as caught:
        it.read_all()
    assert f"`ch_sink {command}" in str(caught.value.hint)


def left_tables(it: Hand) -> list[Any]:
    """Tables that a refilling has left."""
    found = it.client.rows(
        f"SELECT name FROM system.tables WHERE database = '{it.database}' AND name LIKE '%ch\\_sink\\_next'"
    )
    return [row["name"] for row in found]


def comment_of(it: Hand) -> str:
    [row] = it.client.rows(f"SELECT comment FROM system.tables WHERE database = '{it.database}' AND name = 't'")
    return str(row["comment"])
