"""A table of several topics that loses rows: no new table can take its place, so `repair` alone has to do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, Subject
from tests.support.hand import OWN, delete, insert, row
from tests.support.hand_commands import Hand, each_of, made
from tests.support.hand_steps import LACKS, Rows, empty, expect_refused

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), delete(row(2, "b"), 130)]
NOW = [(1, "a"), (3, "c")]


class Shared(Hand):
    """One of the topics of a table."""

    @property
    def subject(self) -> Subject:
        return replace(super().subject, condition="place = 'eu'", key=("place", "id"))


def shared(client: Client, database: str, engine: str) -> Shared:
    clause, own = OWN[engine]
    chosen = policy_of(on_bad_record="fail", add=(("place", "'eu'"),), source_columns=("place",))
    it = made(client, database, (clause, f"place String, {own}"), chosen, [EVENTS], "ORDER BY (place, id)")
    return Shared(client, database, it.feed)


def repair(it: Shared, against: Literal["source", "topic"], rows: Sequence[tuple[int, str]], where: str = "") -> None:
    it.source = Rows(rows)
    options = Options(patience=0, against=against, condition=where)
    done = repaired(it.subject, options, apply=True)
    assert (done.left, done.too_new) == (0, 0)


@each_of("engine", ("replacing", "sign"), "replacing", "sign")
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_table_that_was_emptied_by_hand_is_repaired_and_goes_on(
    client: Client, database: str, engine: str, against: Literal["source", "topic"]
) -> None:
    it = shared(client, database, engine)
    it.read_all()
    empty(it)
    expect_refused(it, LACKS, "repair CONFIG --apply`")
    with pytest.raises(StreamFailed, match="has the rows of several topics"):
        resynced(it.refill, apply=True)
    repair(it, against, NOW)
    it.topic([*EVENTS, insert(4, "d", 140), delete(row(1, "a"), 150)])
    it.read_all()
    assert it.view() == [(3, "c"), (4, "d")]
    empty(it)
    expect_refused(it, LACKS, "repair CONFIG --apply`")


def test_a_repair_of_some_rows_does_not_hide_that_others_are_lost(client: Client, database: str) -> None:
    it = shared(client, database, "replacing")
    it.read_all()
    empty(it)
    with pytest.raises(StreamFailed, match=LACKS):
        repair(it, "topic", NOW, where="id = 1")
    expect_refused(it, LACKS, "repair CONFIG --apply`")
