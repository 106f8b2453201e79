"""Commands of a stream whose topic was deleted and created: with the rows of the former one, or without them."""

from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.choose import some
from tests.support.hand import ENGINES, delete, insert, mysql, row, update
from tests.support.hand_commands import MARKING, each_of, hand, made_anew, recreated
from tests.support.hand_steps import BIG, Rows, empty, forget, lettered, lose, plant, position, retried, widen

pytestmark = [pytest.mark.integration, pytest.mark.long]
"""`make test` draws sequences of the same commands: test_any_command_sequence."""


@pytest.mark.parametrize(
    ("engine", "strategy"),
    some(product(ENGINES, ["auto", "kafka_offset"]), [("replacing", "auto"), ("collapsing", "auto")]),
)
def test_a_topic_that_goes_on_without_a_snapshot_says_nothing_of_former_rows(
    client: Client, database: str, engine: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = hand(client, database, engine, [insert(7, "x", 90), insert(8, "y", 100)], version_strategy=strategy)
    it.read((0, 2))
    made_anew(it, monkeypatch, update(row(7, "x"), row(7, "xx"), 110))
    it.read_all()
    now = [(7, "xx"), (8, "y")]
    assert it.view() == now
    with verified(it.subject, Options(patience=0)) as done:
        r = done.report
        assert (r.missing, r.extra, r.different, r.unknown) == (0, 0, 0, 1)
    stored = it.stored()
    mended = repaired(it.subject, Options(patience=0), apply=True)
    assert (mended.rows, mended.left, mended.unremovable, mended.report.unknown) == (0, 0, 0, 1)
    with pytest.raises(StreamFailed, match="was recreated and does not begin with a snapshot"):
        resynced(it.refill, apply=True, against="topic")
    assert it.stored() == stored
    lose(it, 7)
    assert it.verify() == (1, 0, 0)
    assert repaired(it.subject, Options(patience=0), apply=True).rows == 1
    assert it.view() == now
    it.source = Rows(now)
    resynced(it.refill, apply=True)
    assert it.view() == now
    assert it.verify_source() == (0, 0, 0)


@each_of("engine", ENGINES, "versioned")
def test_a_lost_ledger_of_a_recreated_topic(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is read again, and all commands go on from there."""
    changes = [update(row(1, "old"), row(1, "new"), 110), insert(2, "b", 120), delete(row(2, "b"), 130)]
    more = [insert(1, "old", 100), *changes]
    it = recreated(client, database, engine, monkeypatch, more)
    it.read((0, 2), (0, 3), (0, 5))
    now = [(1, "new"), (9, "x")]
    assert it.view() == now
    forget(it)
    it.feed.at = {0: 0}
    it.read((0, 2))
    it.read((0, 4))
    it.read_all()
    assert it.view() == now
    assert it.verify() == (0, 0, 0)
    lose(it, 1)
    plant(it, 77, like=9)
    assert repaired(it.subject, Options(patience=0), apply=True).rows == 2
    assert it.view() == now
    it.source = Rows(now, settles=position(140))
    resynced(it.refill, apply=True)
    assert it.view() == now
    assert it.verify_source() == (0, 0, 0)
    it.topic([insert(9, "x", 50), *more, update(row(1, "new"), row(1, "newer"), 150)])
    it.read_all()
    now = [(1, "newer"), (9, "x")]
    assert it.view() == now
    assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "collapsing")
def test_a_first_load_of_a_recreated_topic(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [insert(1, "old", 100), update(row(1, "old"), row(1, "new"), 110)]
    it = recreated(client, database, engine, monkeypatch, more)
    empty(it)
    it.source = Rows([(1, "old"), (9, "x"), (8, "y")], settles=position(105))
    resynced(it.refill, apply=True)
    late = [insert(5, "late", 60), update(row(1, "new"), row(1, "newer"), 150), delete(row(8, "y"), 160)]
    it.topic([insert(9, "x", 50), *more, *late])
    it.read_all()
    now = [(1, "newer"), (9, "x")]
    assert it.view() == now
    it.source = Rows(now)
    assert it.verify() == it.verify_source() == (0, 0, 0)
    lose(it, 1, 9)
    assert repaired(it.subject, Options(patience=0, against="source"), apply=True).rows == 2
    assert it.view() == now
    resynced(it.refill, apply=True)
    assert it.view() == now
    assert it.verify_source() == (0, 0, 0)


@each_of("engine", MARKING, "replacing")
def test_a_letter_of_the_former_topic_is_outdated_once_the_table_was_filled_anew(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was deleted in between, and a table that was filled has no mark of it."""
    it = lettered(client, database, engine, [insert(1, "a", 100, n=BIG), insert(2, "b", 110, n=7)])
    it.read((0, 2))
    widen(it)
    made_anew(it, monkeypatch, mysql("r", {"id": 2}, None, row(2, "b", n=7), 300, snapshot="true"))
    it.read_all()
    it.source = Rows([(2, "b", 7)], types={"id": "bigint", "v": "varchar", "n": "bigint"})
    resynced(it.refill, apply=True)
    assert retried(it).superseded == [0]
    assert it.view() == [(2, "b")]
