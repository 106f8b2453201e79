"""Repairs and erasures, and what restored tables and explanations make of them."""

from dataclasses import dataclass

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.trust.key import wanted_key
from ch_sink.trust.life import Reading, biography
from ch_sink.trust.one_key import erased, noted_of
from ch_sink.trust.repair import Repaired, repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.support.choose import each_value
from tests.support.hand_commands import MARKING, Hand, each_of, final_by_default, hand
from tests.support.hand_steps import EVENTS, LACKS, Rows, backup, empty, expect_refused, lose, plant, position, restore
from tests.support.hand_tables import COLLAPSING, ENGINES, delete, insert, row, update

pytestmark = pytest.mark.integration

NEW = [(1, "a"), (2, "new"), (3, "c"), (6, "lost")]


def mended(it: Hand, against: str = "topic") -> Repaired:
    options = Options(patience=0, against="source" if against == "source" else "topic")
    done = repaired(it.subject, options, apply=True)
    assert (done.left, done.too_new, done.unremovable) == (0, 0, 0)
    return done


def test_a_mark_that_a_user_who_reads_with_final_does_not_see_is_repaired(client: Client, database: str) -> None:
    it = hand(final_by_default(client), database, "replacing", EVENTS[:3])
    it.read((0, 3))
    it.client.command(
        f"INSERT INTO {database}.t (id, v, _version, _is_deleted) SELECT 2, v, _version, 1 FROM {database}.t "
        "WHERE id = 3"
    )
    assert mended(it).report.missing == 1
    assert it.view() == [(1, "a"), (2, "b"), (3, "c")]


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_changes_after_a_repair_of_what_the_connector_lost(client: Client, database: str, engine: str) -> None:
    """An update and a create; a delete and an update follow."""
    events = [*EVENTS[:3], delete(row(6, "lost"), 150), update(row(2, "new"), row(2, "newer"), 160)]
    it = hand(client, database, engine, events)
    it.read((0, 2), (0, 3))
    it.source = Rows(NEW)
    assert mended(it, "source").rows == 2
    assert it.view() == NEW
    it.feed.at = {0: 3}
    it.read((0, 5))
    assert it.view() == [(1, "a"), (2, "newer"), (3, "c")]
    it.source = Rows(it.view())
    assert it.verify_source() == (0, 0, 0)


def test_a_repair_of_some_rows_does_not_hide_that_others_are_lost(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:3])
    it.read((0, 3))
    before = it.view()
    empty(it)
    some = Options(patience=0, against="topic", condition="id = 3")
    with pytest.raises(StreamFailed, match="A repair of some rows would hide that others are missing"):
        repaired(it.subject, some, apply=True)
    assert it.view() == []
    assert mended(it).rows == len(before)
    assert it.view() == before


@each_of("engine", ENGINES, "versioned")
def test_changes_after_a_repair_of_a_lost_delete(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2), (0, 3))
    it.source = Rows([(1, "a"), (3, "c")])
    assert mended(it, "source").rows == 1
    assert it.view() == [(1, "a"), (3, "c")]
    it.feed.at = {0: 3}
    it.read((0, 5))
    assert it.view() == [(1, "a"), (3, "c"), (4, "d"), (5, "e")]


@pytest.mark.parametrize(("engine", "against"), each_value(COLLAPSING, ["topic", "source"]))
def test_the_same_row_is_lost_and_repaired_twice(client: Client, database: str, engine: str, against: str) -> None:
    it = hand(client, database, engine, EVENTS[:3])
    it.read((0, 3))
    before = it.view()
    it.source = Rows(before)
    for _ in range(2):
        lose(it, 2)
        assert mended(it, against).rows == 1
        assert it.view() == before
    it.topic([*EVENTS[:3], update(row(2, "b"), row(2, "bb"), 130)])
    it.read_all()
    assert it.view() == [(1, "a"), (2, "bb"), (3, "c")]


@each_of("engine", ENGINES, "replacing")
def test_an_erased_key_stays_away_from_repairs_and_resyncs(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*EVENTS[:3], delete(row(2, "b"), 150), update(row(1, "a"), row(1, "aa"), 160)])
    it.read((0, 2), (0, 5))
    erased(it.subject, it.own, {"id": 2}, apply=True)
    now = [(1, "aa"), (3, "c")]

    def expect_erased() -> None:
        assert it.view() == now
        assert [r for r in it.stored() if r[0] == 2] == []

    lose(it, 1)
    assert mended(it).rows == 1
    expect_erased()
    resynced(it.refill, apply=True, against="topic")
    expect_erased()
    assert it.verify() == (0, 0, 0)


@each_of("engine", MARKING, "replacing")
def test_a_table_restored_to_what_a_repair_made_of_it(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*EVENTS[:4], update(row(1, "a"), row(1, "aa"), 160)])
    it.read((0, 2), (0, 3))
    lose(it, 2)
    plant(it, 99, like=3)
    assert mended(it).rows == 2
    assert it.view() == [(1, "a"), (2, "b"), (3, "c")]
    backup(it)
    it.feed.at = {0: 3}
    it.read((0, 5))
    before = it.view()
    assert before == [(1, "aa"), (2, "b"), (3, "c"), (4, "d")]
    restore(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == before
    assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "sign", "collapsing")
def test_commands_after_a_restored_table_was_filled_anew(client: Client, database: str, engine: str) -> None:
    """A collapsing table does not show what it lacks: a resync fills it anew."""
    it = hand(client, database, engine, [*EVENTS[:3], update(row(1, "a"), row(1, "aa"), 130), delete(row(2, "b"), 140)])
    it.read((0, 2))
    backup(it)
    it.read((0, 4), (0, 5))
    before = it.view()
    assert before == [(1, "aa"), (3, "c")]
    restore(it)
    if engine in COLLAPSING:
        it.read_all()
        assert it.view() == [(1, "a"), (2, "b")]
    else:
        expect_refused(it, LACKS, "resync CONFIG --apply`")
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == before
    assert it.verify() == (0, 0, 0)
    erased(it.subject, it.own, {"id": 2}, apply=True)
    resynced(it.refill, apply=True, against="topic")
    assert it.view() == before


@dataclass(frozen=True)
class Rule:
    """What `explain` says of one change."""

    offset: int
    op: str
    rule: str


def rules_of(it: Hand, number: int) -> list[Rule]:
    """As `explained` finds them, without a configuration."""
    s, key = it.subject, {"id": number}
    noted = noted_of(s, it.own, s.topic.state("t").topic_id)
    found = biography(Reading.of(s), wanted_key(s.client, s.table, key), noted)
    return [Rule(e.offset, e.op, e.rule) for e in found.events]


def test_explain_tells_what_a_first_load_had_loaded(client: Client, database: str) -> None:
    """The create arrived behind the load with a position below it: the stream drops it, and the row is not there."""
    it = hand(client, database, "replacing", [insert(7, "x", 90)])
    it.source = Rows([(1, "a")], settles=position(115))
    resynced(it.refill, apply=True)
    it.topic([insert(7, "x", 90), insert(8, "late", 100), insert(9, "new", 120)])
    it.read_all()
    assert it.view() == [(1, "a"), (9, "new")]
    assert rules_of(it, 7) == [Rule(0, "c", "loaded")]
    assert rules_of(it, 8) == [Rule(1, "c", "loaded")]
    assert rules_of(it, 9) == [Rule(2, "c", "newer")]


def test_explain_tells_what_was_erased(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:3])
    it.read((0, 2), (0, 3))
    erased(it.subject, it.own, {"id": 2}, apply=True, live=True)
    assert it.view() == [(1, "a"), (3, "c")]
    assert rules_of(it, 2) == [Rule(1, "c", "erased")]
    assert rules_of(it, 3) == [Rule(2, "c", "newer")]
