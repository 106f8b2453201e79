"""Hand-written events of which some become dead letters: those whose ``n`` the table cannot hold at first."""

from collections.abc import Iterator, Sequence
from typing import Any

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.stream.partition_states import States
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.table.views import view_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from ch_sink.wiring.letters import LetterRetry, Retried
from tests.support.hand import Event
from tests.support.hand_commands import TIMED, Hand, made
from tests.support.hand_steps import Rows
from tests.support.hand_tables import APPEND, OWN

__all__ = ["BIG", "lettered", "mended", "retried", "widen"]

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
    letters = [x.letter for x in feed.letters_of.list(1000) if x.letter.partition == partition]
    letters = [x for x in letters if only in (None, x.offset)]
    claim = feed.book.claim("letters")
    try:
        reached = feed.book.progress("id")[partition]
        state = States(feed.book, "id", len(feed.records), None).at(partition, reached)
        task = ReleaseTask(feed.name, "t", "id", partition, feed.admin.table, state, claim=claim)

        done = LetterRetry(feed.runner.open_task(task).sink, feed.book, state).run(letters)
        for outcome, offsets in (("applied", done.applied), ("superseded", done.superseded)):
            feed.letters_of.settle([(partition, o) for o in offsets], outcome)
        return done
    finally:
        feed.book.release()
