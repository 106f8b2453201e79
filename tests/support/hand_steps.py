"""What happens to a stream of hand-written events besides its commands, and a stand-in for its source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.memory.ledger import MemoryLedger
from ch_sink.model.policy import policy_of
from ch_sink.stream.partition_states import States
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.table.spec import TableSpec
from ch_sink.table.views import view_of
from ch_sink.trust.refill import Refill
from ch_sink.trust.repair import repaired
from ch_sink.trust.shape import Wanted
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import Successor
from ch_sink.wiring.letters import LetterRetry, Retried
from tests.support.hand import APPEND, OWN, Event, insert
from tests.support.hand_commands import TIMED, Hand, hand, made

LACKS = "lacks rows that the stream has stored"
EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), insert(4, "d", 130), insert(5, "e", 140)]

FIRST = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
"""The rows after the first four."""


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


BIG = 300


class WideRows(Rows):
    """Rows of (id, v, n)."""

    def columns(self) -> dict[str, str]:
        return {"id": "bigint", "v": "varchar", "n": "bigint"}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Any, ...]]]:
        own = {"id": 0, "v": 1, "n": 2}
        yield [tuple(str(r[own[n]]) for n in names) for r in self.now]


def lettered(client: Client, database: str, engine: str, *parts: Sequence[Event]) -> Hand:
    """A stream that has read nothing yet into (id, v, n), a table of `OWN`, `TIMED` or ``append``."""
    clause, own, more = TIMED[engine] if engine in TIMED else (*OWN.get(engine, APPEND), {})
    own = f"n Nullable(UInt8), {own}" if own else "n Nullable(UInt8)"
    return made(client, database, (clause, own), policy_of(on_bad_record="dead_letter", **more), parts)


def widen(it: Hand) -> None:
    """The table can hold every ``n`` from now on."""
    it.client.command(f"ALTER TABLE {it.database}.t MODIFY COLUMN n Nullable(Int64)")
    it.feed.admin.table = it.feed.admin.inner.detect()
    it.client.command(view_of(it.feed.admin.table, it.subject.key))


def mended(it: Hand, rows: Sequence[tuple[Any, ...]], against: Any = "source") -> None:
    """A repair makes the table these rows, which the source has."""
    it.source = WideRows(rows)
    done = repaired(it.subject, Options(patience=0, against=against), apply=True)
    assert (done.left, done.too_new, done.unremovable) == (0, 0, 0)
    assert done.rows
    assert it.view() == sorted(r[:2] for r in rows)


def retried(it: Hand, partition: int = 0, *, only: int | None = None) -> Retried:
    """A partition's letters as ``dead-letters retry`` tries them; ``only``: the offset of the one that is chosen."""
    feed = it.feed
    feed.runner.stop()
    stored = replace(feed.letters_of, topic_id=feed.letters_of.topic_ids()[0])
    letters = [x.letter for x in stored.list(1000) if x.letter.partition == partition]
    letters = [x for x in letters if only in (None, x.offset)]
    claim = feed.book.claim("letters")
    try:
        topic_id = stored.topic_id
        reached = feed.book.progress(topic_id)[partition]
        state = States(feed.book, topic_id, len(feed.records), None).at(partition, reached)
        task = ReleaseTask(feed.name, "t", topic_id, partition, feed.admin.table, state, claim=claim)

        done = LetterRetry(feed.runner.open_task(task).sink, feed.book, state).run(letters)
        for outcome, offsets in (("applied", done.applied), ("superseded", done.superseded)):
            stored.settle([(partition, o) for o in offsets], outcome)
        return done
    finally:
        feed.book.release()


def shaped(it: Hand, **choices: Any) -> Refill:
    """The stream, with a file that states these things."""
    spec = TableSpec(it.database, "t", **choices)
    return replace(it.refill, wanted=Wanted(spec, frozenset(choices)))


def begun(client: Client, database: str, engine: str, **policy: Any) -> Hand:
    """The stream has applied four of the topic's changes, which are all that the source has."""
    it = hand(client, database, engine, EVENTS[:4], **policy)
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    return it
