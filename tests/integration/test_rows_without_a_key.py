"""Rows without a key are counted: compared and filled anew while changes are unread, trimmed or on their way."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.views import view_of
from ch_sink.testing import MemoryTopic
from ch_sink.trust.repair import repaired
from ch_sink.trust.report import Report
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.verify import verified
from tests.support.choose import some
from tests.support.hand import APPEND, OWN, Event, delete, insert, mysql, row, update
from tests.support.hand_commands import Hand, made, made_anew
from tests.support.hand_steps import LACKS, Rows, empty, lose

pytestmark = pytest.mark.integration

Against = Literal["source", "topic"]
A, B = row(1, "a"), row(1, "b")
CASES = {
    "there and back": ([insert(1, "a", 100)], [update(A, B, 110), update(B, A, 120)], [(1, "a")]),
    "deleted and inserted": ([insert(1, "a", 100)], [delete(A, 110), insert(1, "a", 120)], [(1, "a")]),
    "one of two deleted": ([insert(1, "a", 100), insert(1, "a", 101)], [delete(A, 110)], [(1, "a")]),
    "a second one": ([insert(1, "a", 100)], [insert(1, "a", 120)], [(1, "a"), (1, "a")]),
}
"""Changes that are lost, those that are left, and the rows."""
EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), delete(A, 130)]
NOW = [(2, "b"), (3, "c")]


class Counted(Hand):
    """A table of equal rows that are counted."""

    @property
    def subject(self) -> Subject:
        return replace(super().subject, key=())

    def topic(self, *parts: Sequence[Event]) -> None:
        super().topic(*map(keyless, parts))

    def report(self, against: Against) -> Report:
        with verified(self.subject, Options(patience=0, against=against)) as done:
            return done.report

    def trim(self, *begins: int) -> None:
        """The topic no longer holds what is below these offsets of each partition."""
        for p, first in enumerate(begins):
            whole = self.feed.records[p]
            self.feed.records[p] = whole.slice(first, len(whole))
        log = self.feed.runner.ports.topics
        assert isinstance(log, MemoryTopic)
        log.partitions = dict(self.feed.records)


def keyless(events: Sequence[Event]) -> list[Event]:
    return [replace(event, key=None) for event in events]


def counted(client: Client, database: str, *parts: Sequence[Event], kind: str = "UInt128", **policy: Any) -> Counted:
    """``kind``: the type of versions."""
    clause, own = APPEND
    chosen = policy_of(on_bad_record="fail", **policy)
    it = made(client, database, (clause, own.replace("UInt128", kind)), chosen, [keyless(events) for events in parts])
    client.command(view_of(it.feed.admin.table, ()))
    return Counted(client, database, it.feed)


def found(report: Report) -> tuple[int, int, int]:
    return report.missing, report.extra, report.different


@pytest.mark.parametrize(
    ("case", "how"),
    some(product(CASES, ["trimmed", "recreated"]), [("one of two deleted", "trimmed"), ("a second one", "recreated")]),
)
def test_rows_of_before_the_topic_begins_cannot_be_judged(
    client: Client, database: str, case: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, left, rows = CASES[case]
    if how == "trimmed":
        it = counted(client, database, [*lost, *left])
        it.read_all()
        it.trim(len(lost))
    else:
        it = counted(client, database, lost)
        it.read_all()
        made_anew(it, monkeypatch, *left)
        it.read_all()
    assert it.view() == rows
    report = it.report("topic")
    assert (*found(report), report.unknown) == (0, 0, 0, 1)
    it.source = Rows(rows)
    assert it.verify_source() == (0, 0, 0)


def test_rows_of_a_former_topic_are_extra_if_the_new_one_begins_with_a_snapshot(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = counted(client, database, EVENTS)
    it.read_all()
    again = [mysql("r", None, None, row(*values), 300, snapshot="true") for values in NOW]
    made_anew(it, monkeypatch, *again, insert(4, "d", 310))
    it.read_all()
    report = it.report("topic")
    assert (*found(report), report.unknown) == (0, 2, 0, 0)


def test_a_row_is_missing_if_the_topic_holds_its_insert(client: Client, database: str) -> None:
    it = counted(client, database, [insert(1, "a", 100), insert(2, "b", 110), delete(A, 120)])
    it.read_all()
    it.trim(1)
    lose(it, 2)
    report = it.report("topic")
    assert (*found(report), report.unknown) == (1, 0, 0, 0)


def test_a_delete_that_one_of_several_partitions_lost_does_not_make_its_row_missing(
    client: Client, database: str
) -> None:
    it = counted(client, database, [insert(1, "a", 100)], [delete(A, 110), insert(2, "b", 120)])
    it.read_all()
    it.trim(0, 1)
    assert it.view() == [(2, "b")]
    assert it.verify() == (0, 0, 0)


@pytest.mark.parametrize("strategy", some([("auto",), ("kafka_offset",)], [("auto",)]))
def test_what_unread_changes_bring_is_no_difference_from_the_source(
    client: Client, database: str, strategy: str
) -> None:
    """The job is stopped, and the source goes on; another row was lost."""
    it = counted(client, database, [insert(7, "x", 90), *EVENTS], version_strategy=strategy)
    it.read((0, 3))
    lose(it, 7)
    it.source = Rows([*NOW, (7, "x")])
    report = it.report("source")
    assert (*found(report), report.changing) == (1, 0, 0, 2)


def test_what_a_partition_brings_of_which_nothing_is_read_is_no_difference_from_the_source(
    client: Client, database: str
) -> None:
    """Its changes are older than those of the other partition."""
    it = counted(client, database, [insert(1, "a", 100), insert(2, "b", 110)], [insert(3, "c", 50)])
    it.read((0, 2))
    it.source = Rows([(1, "a"), *NOW])
    assert found(it.report("source")) == (0, 0, 0)
    it.feed.at = {0: 2, 1: 0}
    it.read_all()
    assert it.view() == sorted(it.source.now)


@pytest.mark.parametrize("against", some([("source",), ("topic",)], [("source",)]))
def test_a_delete_too_many_is_found_before_it_swallows_the_next_insert(
    client: Client, database: str, against: Against
) -> None:
    it = counted(client, database, EVENTS)
    it.read_all()
    client.command(f"INSERT INTO {database}.t (id, v, _op, _sign, _version) VALUES (5, 'e', 'd', -1, 1)")
    it.source = Rows(NOW)
    report = it.report(against)
    assert (*found(report), report.rows) == (1, 0, 0, 2)
    resynced(it.refill, apply=True, against="topic")
    it.topic([*EVENTS, insert(5, "e", 140)])
    it.read_all()
    assert it.view() == [*NOW, (5, "e")]


def test_rows_that_differ_in_a_column_of_the_users_do_not_cancel(client: Client, database: str) -> None:
    """The view shows the insert: its delete has another time."""
    clause, own = APPEND
    chosen = policy_of(on_bad_record="fail")
    more = f"at DateTime64(9) DEFAULT now64(9), {own}"
    it = made(
        client, database, (clause, more), chosen, [keyless([insert(1, "a", 100), insert(2, "b", 110), delete(A, 120)])]
    )
    client.command(view_of(it.feed.admin.table, ()))
    it = Counted(client, database, it.feed)
    it.read((0, 2), (0, 3))
    it.source = Rows([(2, "b")])
    assert it.view() == [(1, "a"), (2, "b")]
    assert found(it.report("source")) == found(it.report("topic")) == (0, 1, 0)


def test_missing_rows_that_a_trimmed_topic_cannot_judge_are_counted(client: Client, database: str) -> None:
    it = counted(client, database, EVENTS[:2], [insert(3, "c", 120), insert(4, "d", 130)])
    it.read_all()
    it.trim(1, 0)
    empty(it)
    report = it.report("topic")
    assert (found(report), report.unknown) == ((0, 0, 0), 3)


def test_a_delete_that_is_read_before_its_row_is_no_difference(client: Client, database: str) -> None:
    """The row is in another partition, of which less is read."""
    it = counted(client, database, [insert(1, "a", 100), insert(2, "b", 110)], [delete(A, 120), insert(3, "c", 130)])
    it.read((1, 2))
    it.source = Rows(NOW)
    assert it.verify() == it.verify_source() == (0, 0, 0)
    it.feed.at = {0: 0, 1: 2}
    it.read_all()
    assert it.view() == NOW
    assert it.verify() == it.verify_source() == (0, 0, 0)


def test_a_repair_names_the_command_that_fills_the_table_anew(client: Client, database: str) -> None:
    it = counted(client, database, EVENTS)
    it.read_all()
    with pytest.raises(StreamFailed, match="has no key") as refused:
        repaired(it.subject, Options(patience=0), apply=False)
    assert "`ch_sink resync CONFIG --against topic`" in (refused.value.hint or "")


@pytest.mark.parametrize("lost", [(3,), (1, 2, 3)], ids=["the newest row", "all rows"])
def test_a_table_that_lacks_rows_is_filled_anew_from_its_topic(
    client: Client, database: str, lost: tuple[int, ...]
) -> None:
    events = [*EVENTS, insert(2, "b", 140), insert(5, "unread", 145)]
    it = counted(client, database, events)
    it.read((0, 4), (0, 5))
    lose(it, *lost)
    lose(it, 2)
    with pytest.raises(StreamFailed, match=LACKS) as stopped:
        it.read_all()
    assert "resync CONFIG --against topic --apply" in (stopped.value.hint or "")
    done = resynced(it.refill, apply=True, against="topic")
    assert (done.rows, it.view()) == (4, [(2, "b"), (2, "b"), (3, "c"), (5, "unread")])
    it.topic([*events, insert(4, "d", 150), delete(row(2, "b"), 160)])
    it.read_all()
    assert it.view() == [(2, "b"), (3, "c"), (4, "d"), (5, "unread")]
    assert found(it.report("topic")) == (0, 0, 0)


def test_a_table_is_not_filled_anew_from_rows_that_cannot_be_told_apart(client: Client, database: str) -> None:
    it = counted(client, database, EVENTS)
    it.read_all()
    it.source = Rows(NOW)
    with pytest.raises(StreamFailed, match="has no key") as refused:
        resynced(it.refill, apply=True)
    assert "--against topic" in (refused.value.hint or "")
    it.trim(1)
    with pytest.raises(StreamFailed, match="no longer holds its first records") as refused:
        resynced(it.refill, apply=True, against="topic")
    assert "new snapshot" in (refused.value.hint or "")
    assert it.view() == NOW


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_collapsing_table_takes_rows_without_kafka_keys_from_one_partition(
    client: Client, database: str, partitions: int
) -> None:
    """In another partition a delete may be read before the row that it deletes."""
    policy = policy_of(on_bad_record="fail", key_columns=("id",))
    parts = [keyless([insert(1, "a", 100), insert(2, "b", 200)]), keyless([delete(row(1, "a"), 300)])]
    it = made(client, database, OWN["collapsing"], policy, parts[:partitions])
    if partitions == 1:
        it.read_all()
        assert it.view() == [(1, "a"), (2, "b")]
        return
    with pytest.raises(StreamFailed, match="carry no key, so changes of a row may be in any of its partitions"):
        it.read_all()
    assert it.view() == []
