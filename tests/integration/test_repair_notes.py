"""What the ledger notes of repairs from the source lets the stream go on, or tells that the table was taken back."""

from collections.abc import Sequence

import pytest

from ch_sink.clickhouse import Client
from ch_sink.ports import TableRepaired
from ch_sink.trust.mend import Mended, repaired
from ch_sink.trust.repair_notes import RepairNotes
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.integration.test_repaired_versions import LACKS, of_database
from tests.support.hand import postgres
from tests.support.hand_commands import MARKING, Hand, each_of, hand
from tests.support.hand_steps import (
    EVENTS,
    Rows,
    backup,
    empty,
    expect_nothing_read_again,
    expect_refused,
    killed,
    lose,
    repaired_from_source,
    restore,
)
from tests.support.hand_tables import delete, insert, key, row, update

pytestmark = pytest.mark.integration

Row = tuple[int, str | None]

AHEAD = [insert(6, "x", 100), insert(7, "q", 120)]
ALL: list[Row] = [(1, "a"), (6, "x"), (7, "q")]
AGAIN = "lacks rows that were repaired from the source"
REPAIR = "repair CONFIG --against source --apply`"


def repair(it: Hand, rows: Sequence[Row], condition: str = "") -> Mended:
    it.source = Rows(rows)
    return repaired(it.subject, Options(patience=0, against="source", condition=condition), apply=True)


def without_newest(client: Client, database: str, engine: str = "replacing") -> Hand:
    """The newest row is lost. The other partition lags, so that a repair gives it a lower version."""
    it = hand(client, database, engine, [insert(1, "a", 10)], AHEAD)
    it.read((0, 1), (1, 2))
    lose(it, 7)
    return it


@each_of("engine", MARKING, "replacing")
def test_a_repair_of_the_newest_row_stops_no_stream(client: Client, database: str, engine: str) -> None:
    it = without_newest(client, database, engine)
    repaired_from_source(it, *ALL)
    expect_nothing_read_again(it)
    it.topic([insert(1, "a", 10)], [*AHEAD, update(row(7, "q"), row(7, "qq"), 130)])
    it.read_all()
    assert it.view() == [*ALL[:2], (7, "qq")]
    expect_nothing_read_again(it)


def test_a_repair_of_an_emptied_table_stops_no_stream(client: Client, database: str) -> None:
    it = without_newest(client, database)
    empty(it)
    repaired_from_source(it, *ALL)
    expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_a_repair_of_the_newest_row_of_one_of_several_databases_stops_no_stream(
    client: Client, database: str, engine: str
) -> None:
    rows = [of_database("c", None, row(1, "a"), "db1", 10), of_database("c", None, row(2, "b"), "db1", 20)]
    it = hand(client, database, engine, rows)
    it.read((0, 2))
    lose(it, 2)
    repaired_from_source(it, (1, "a"), (2, "b"))
    expect_nothing_read_again(it)


def test_a_table_that_was_repaired_in_part_is_right_once_all_of_it_was_compared(client: Client, database: str) -> None:
    it = without_newest(client, database)
    assert repair(it, ALL, condition="id = 7").rows == 1
    expect_refused(it, LACKS, REPAIR)
    assert repair(it, ALL).rows == 0
    expect_nothing_read_again(it)


def test_repairs_that_find_nothing_note_nothing(client: Client, database: str) -> None:
    it = without_newest(client, database)
    repaired_from_source(it, *ALL)
    noted = it.feed.book.facts(TableRepaired)
    repaired_from_source(it, *ALL)
    assert it.feed.book.facts(TableRepaired) == noted
    it.read_all()
    lose(it, 6)  # the highest version; nothing of the source is missing
    repaired_from_source(it, ALL[0], ALL[2])
    expect_nothing_read_again(it)


def test_a_repaired_table_that_is_emptied_stops_the_stream(client: Client, database: str) -> None:
    it = without_newest(client, database)
    repaired_from_source(it, *ALL)
    empty(it)
    expect_refused(it, LACKS, REPAIR)
    repaired_from_source(it, *ALL)
    expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_a_table_of_before_a_repair_that_removed_rows_stops_the_stream(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, EVENTS[:3])
    it.read((0, 3))
    backup(it)
    repaired_from_source(it, (1, "a"), (3, "c"))
    expect_nothing_read_again(it)
    restore(it)
    expect_refused(it, AGAIN, REPAIR)
    repaired_from_source(it, (1, "a"), (3, "c"))
    expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_a_table_of_before_a_repair_that_was_killed_and_repeated_stops_the_stream(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are written when it is killed, so that the second run finds nothing."""
    it = hand(client, database, engine, EVENTS[:3])
    it.read((0, 3))
    backup(it)
    rows: list[Row] = [(1, "a"), (2, "z"), (3, "c")]
    with killed(monkeypatch, RepairNotes, "end"):
        repair(it, rows)
    assert it.view() == rows
    assert repair(it, rows).rows == 0
    restore(it)
    expect_refused(it, AGAIN, REPAIR)


def test_a_table_that_was_truncated_then_repaired_is_emptied(client: Client, database: str) -> None:
    """No change has come since the truncate."""
    events = [postgres("c", key(1), None, row(1, "a"), 5, 10), postgres("t", None, None, None, 20, 21)]
    it = hand(client, database, "replacing", events, truncate="apply")
    it.read_all()
    repaired_from_source(it, (2, "b"))
    expect_nothing_read_again(it)
    empty(it)
    expect_refused(it, AGAIN, REPAIR)


@each_of("engine", MARKING, "replacing")
def test_a_repair_without_differences_ends_a_refusal_where_the_source_has_deleted_the_repaired_row(
    client: Client, database: str, engine: str
) -> None:
    """The change that deletes it is not read yet."""
    it = hand(client, database, engine, EVENTS[:3])
    it.read_all()
    backup(it)
    rows = it.view()
    repaired_from_source(it, *rows, (9, "lost"))
    restore(it)
    it.topic([*EVENTS[:3], delete(row(9, "lost"), 900)])
    expect_refused(it, AGAIN, REPAIR)
    assert repair(it, rows).rows == 0
    assert not it.feed.book.facts(TableRepaired)[-1].outranked
    it.read_all()
    assert it.view() == rows
    expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_a_repair_without_differences_ends_a_refusal_where_the_row_was_deleted_by_the_stream(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, EVENTS[:3])
    it.read_all()
    backup(it)
    rows = it.view()
    repaired_from_source(it, *rows, (9, "lost"))
    deleted = delete(row(9, "lost"), 900)
    it.topic([*EVENTS[:3], deleted])
    it.read_all()
    restore(it)
    expect_refused(it, LACKS, REPAIR)
    assert repair(it, rows).rows == 0
    assert it.feed.book.facts(TableRepaired)[-1].outranked  # the mark is lost
    expect_nothing_read_again(it)
    it.topic([*EVENTS[:3], deleted, insert(4, "d", 910)])
    it.read_all()
    assert it.view() == [*rows, (4, "d")]


def test_a_repair_without_differences_ends_a_refusal_though_the_former_one_is_in_the_table(
    client: Client, database: str
) -> None:
    """What the table lacks has come after it, and the source no longer has it."""
    it = without_newest(client, database)
    repaired_from_source(it, *ALL)
    backup(it)
    more = [*AHEAD, insert(9, "n", 130), delete(row(9, "n"), 140)]
    it.topic([insert(1, "a", 10)], more)
    it.read_all()
    restore(it)
    expect_refused(it, LACKS, REPAIR)
    assert repair(it, ALL).rows == 0
    expect_nothing_read_again(it)


def test_a_repair_without_differences_ends_a_refusal_where_rows_of_the_filling_are_gone_as_well(
    client: Client, database: str
) -> None:
    it = hand(client, database, "replacing", EVENTS[:3])
    it.read_all()
    it.source = Rows(it.view())
    resynced(it.refill, apply=True)
    repaired_from_source(it, *it.view(), (9, "lost"))
    empty(it)
    expect_refused(it, "lacks rows that were loaded from the source", "resync CONFIG --apply`")
    assert repair(it, []).rows == 0  # the deletes are not read yet
    expect_nothing_read_again(it)


def test_a_partial_repair_stays_known_after_a_whole_one_without_differences(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:3])
    it.read_all()
    backup(it)
    rows: list[Row] = [*it.view(), (9, "lost")]
    assert repair(it, rows, condition="id = 9").rows == 1
    assert repair(it, rows).rows == 0
    assert {fact.top for fact in it.feed.book.facts(TableRepaired)[1:]} == {it.feed.book.facts(TableRepaired)[-1].left}
    expect_nothing_read_again(it)
    restore(it)
    expect_refused(it, AGAIN, REPAIR)
